"""Exercise `pairwise_all_to_all(pieces, sizes, group)`: piece j of rank i becomes piece i of rank j, any lengths."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.compare import agree
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.misconceptions import NO_SUCH_RANK, Finding, Misconception, by_fault, by_outputs
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

Inputs = list[dict[str, Any]]


def cases(world_size: int) -> list[Case]:
    """One case for each size of group; `make` draws the lengths."""
    return [one_group(p, world_size) for p in group_sizes(world_size) for _ in range(2 if world_size == 2 else 1)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """p x p pieces, all of different lengths."""
    p = case.p
    length = (generator.permutation(p * p) + 1).reshape(p, p)  # [source, destination]
    return [
        {
            "pieces": [nonzero(generator, int(length[rank, to])) for to in range(p)],
            "sizes": [int(length[source, rank]) for source in range(p)],
        }
        for rank in range(p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The table of pieces, transposed."""
    return [[given["pieces"][rank] for given in inputs] for rank in range(case.p)]


def budget(case: Case, inputs: Inputs) -> Budget:
    """Each rank sends the pieces for others, in p - 1 messages."""
    table = np.array([[piece.nbytes for piece in given["pieces"]] for given in inputs])
    others = table - np.diag(np.diag(table))
    sent, received = (tuple(int(n) for n in others.sum(axis)) for axis in (1, 0))
    return Budget(sent=sent, received=received, messages=(case.p - 1,) * case.p)


def _in_order_of_arrival(evidence: Evidence) -> list[Any]:
    return [[evidence.expected[r][(r - s) % evidence.p] for s in range(evidence.p)] for r in range(evidence.p)]


def _own_missing(finding: Finding) -> bool:
    """Right but for the piece that a rank keeps."""
    evidence = finding.evidence
    return evidence.finished and all(
        isinstance(output, list) and _wrong(output, evidence.expected[rank]) == [rank]
        for rank, output in enumerate(evidence.outputs)
    )


def _wrong(output: list[Any], right: list[Any]) -> list[int]:
    if len(output) != len(right):
        return []
    return [i for i, (a, b) in enumerate(zip(output, right, strict=True)) if not agree(a, b)]


def _never_met(finding: Finding) -> bool:
    """Right at 2 ranks; at 3 some pair of ranks never exchanged, or a rank that does not exist was addressed."""
    evidence = finding.evidence
    if evidence.p != 3 and not any(o.p == 3 and not o.right for o in finding.others):
        return False
    missing = evidence.finished and any(
        evidence.case.members[q] not in {event.peer for event in outcome.events if event.op == "recv"}
        for rank, outcome in enumerate(evidence.outcomes)
        for q in range(evidence.p)
        if q != rank
    )
    return missing or any(words in finding.error for words in NO_SUCH_RANK)


def _own_lengths(finding: Finding) -> bool:
    """What arrives is given the length of what is sent to that rank."""
    evidence = finding.evidence
    if not evidence.finished:
        return any(event.op == "recv" and event.numel in _unexpected(evidence, rank, event.peer)
                   for rank, outcome in enumerate(evidence.outcomes) for event in outcome.events)
    return any(
        isinstance(output, list)
        and [np.shape(piece) for piece in output] == [piece.shape for piece in evidence.inputs[rank]["pieces"]]
        for rank, output in enumerate(evidence.outputs)
    )


def _unexpected(evidence: Evidence, rank: int, peer: int) -> set[int]:
    source = evidence.case.members.index(peer)
    lengths = {len(piece) for piece in evidence.inputs[rank]["pieces"]}
    return lengths - {evidence.inputs[rank]["sizes"][source]}


def _same_partner(finding: Finding) -> bool:
    """Stuck at 3 ranks or more, with receives posted from the rank that is sent to."""
    evidence = finding.evidence
    return bool(evidence.failure) and evidence.p > 2 and any(
        {e.peer for e in o.events if e.op == "recv"} == {e.peer for e in o.sends} and o.sends for o in evidence.outcomes
    )


EXERCISE = Exercise(
    name="pairwise_all_to_all",
    values="every rank returns the list of what each rank had for it, in the order of the ranks, pieces of any length",
    communication="only send and receive, p-1 messages, each piece for another rank sent once",
    cases=cases,
    make=make,
    expected=expected,
    budget=budget,
    misconceptions=(
        Misconception(
            "own missing",
            _own_missing,
            "The piece that a rank keeps is missing or wrong: no message brings it.",
            "`received[rank] = pieces[rank].clone()` before the first step.",
        ),
        by_outputs(
            "order of arrival",
            _in_order_of_arrival,
            "The pieces are in the order in which they arrived, which is another one on each rank.",
            "Put what came from rank q in place q of the list.",
        ),
        Misconception(
            "exclusive or",
            _never_met,
            "Some pairs of ranks never meet: pairing by `rank ^ step` reaches everyone only if p is "
            "a power of two.",
            "In step s send to (rank + s) mod p and receive from (rank - s) mod p: right for every p.",
        ),
        Misconception(
            "own lengths",
            _own_lengths,
            "What arrives was given the length of what leaves: the pieces are uneven, and each "
            "direction has its own length.",
            "Receive from rank q into `torch.empty(sizes[q])`, not into a tensor like pieces[q].",
        ),
        Misconception(
            "same partner",
            _same_partner,
            "Each rank expects a piece from the rank it sends to, and that rank sends to someone "
            "else in this step.",
            "In step s send to (rank + s) mod p and receive from (rank - s) mod p.",
        ),
        by_fault(
            "sends all",
            "bytes",
            "The pieces are right and too much is sent: ranks also send what the receiver has no use for.",
            "In step s send pieces[(rank + s) % p], once, and nothing else.",
        ),
    ),
)
