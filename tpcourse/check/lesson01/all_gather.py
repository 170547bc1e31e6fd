"""Exercise `ring_all_gather(piece, group)`: [n/p] -> [n], p - 1 messages to one neighbour."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.misconceptions import Finding, Misconception, by_fault, by_outputs
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

Inputs = list[dict[str, Any]]


def cases(world_size: int) -> list[Case]:
    """Pieces of another length in each group; one has a single element."""
    sizes = group_sizes(world_size)
    found = [one_group(p, world_size, length=length) for p, length in zip(sizes, (3, 5, 2), strict=False)]
    return [*found, one_group(sizes[-1], world_size, length=1, edge=True)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """A piece for each rank."""
    return [{"piece": nonzero(generator, case.sizes["length"])} for _ in range(case.p)]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """All pieces in rank order, on every rank."""
    return [np.concatenate(_pieces(inputs))] * case.p


def budget(case: Case, inputs: Inputs) -> Budget:
    """p - 1 messages of one piece: (p-1)/p n bytes."""
    num_bytes = (case.p - 1) * inputs[0]["piece"].nbytes
    every = (num_bytes,) * case.p
    return Budget(sent=every, received=every, messages=(case.p - 1,) * case.p, ring=True)


def _pieces(inputs: Inputs) -> list[np.ndarray]:
    return [given["piece"] for given in inputs]


def _placed(evidence: Evidence, source: Any, slot: Any) -> list[np.ndarray]:
    """Each rank's result if the piece of `source(r, s)` were put in place `slot(r, s)` after s steps."""
    pieces, p = _pieces(evidence.inputs), evidence.p
    results = []
    for r in range(p):
        blocks = [pieces[r]] * p
        for s in range(p):
            blocks[slot(r, s) % p] = pieces[source(r, s) % p]
        results.append(np.concatenate(blocks))
    return results


def _turned(evidence: Evidence) -> list[np.ndarray]:
    return _placed(evidence, lambda r, s: r - s, lambda r, s: r + s)


def _in_order_of_arrival(evidence: Evidence) -> list[np.ndarray]:
    return _placed(evidence, lambda r, s: r - s, lambda r, s: s)


def _own_again(evidence: Evidence) -> list[np.ndarray]:
    return _placed(evidence, lambda r, s: r - 1 if s else r, lambda r, s: r - s)


def _one_buffer(evidence: Evidence) -> list[np.ndarray]:
    return _placed(evidence, lambda r, s: r + 1 if s else r, lambda r, s: r - s)


def _too_few(finding: Finding) -> bool:
    evidence = finding.evidence
    return evidence.finished and not evidence.right and all(len(o.sends) < evidence.p - 1 for o in evidence.outcomes)


def _too_many(finding: Finding) -> bool:
    evidence = finding.evidence
    over = evidence.right and finding.fault_kind in ("bytes", "messages")
    return over and all(len(outcome.sends) == evidence.p for outcome in evidence.outcomes)


EXERCISE = Exercise(
    name="ring_all_gather",
    values="every rank returns all pieces, in the order of the ranks",
    communication="only send and receive, p-1 messages to one neighbour, (p-1)/p n bytes a rank",
    cases=cases,
    free=("length",),
    make=make,
    expected=expected,
    budget=budget,
    misconceptions=(
        Misconception(
            "step missing",
            _too_few,
            "A step is missing: some pieces have not come all the way round, and their places were "
            "never filled.",
            "A piece needs p-1 steps to reach the rank that is furthest away: `for step in range(p - 1)`.",
        ),
        by_outputs(
            "ring turned",
            _turned,
            "All pieces are there, in mirrored places: the ring was read the other way round. Two "
            "ranks cannot show this.",
            "What comes from the left after step s began s+1 ranks to the left: it is piece (r - s - 1) mod p.",
        ),
        by_outputs(
            "order of arrival",
            _in_order_of_arrival,
            "The pieces are in the order in which they arrived, which is another one on each rank.",
            "Write each piece to its owner's place, `result[owner * length : (owner + 1) * length]`.",
        ),
        by_outputs(
            "sends its own",
            _own_again,
            "Every step brought the left neighbour's own piece: each rank sent its own piece again and again.",
            "In step s pass on what arrived in step s-1; only the first step sends the rank's own piece.",
        ),
        by_outputs(
            "one buffer",
            _one_buffer,
            "Every place holds the piece that arrived last: one buffer was kept for all steps, and "
            "overwritten in each.",
            "Copy what arrived to its place before the next step, or receive straight into the place.",
        ),
        Misconception(
            "step too many",
            _too_many,
            "The values are right, and there is one step too many: in the last one each rank sends a piece to the rank "
            "that it came from.",
            "A piece needs p-1 steps to reach the rank that is furthest away: `for step in range(p - 1)`.",
        ),
        by_fault(
            "sends all",
            "bytes",
            "The values are right and too much is sent: each step passes on more than the piece that "
            "has just arrived.",
            "One piece in each of p-1 steps is all that a rank has to send: (p-1)/p n bytes.",
        ),
        by_fault(
            "direct",
            "ring",
            "The values and bytes are right, but each rank sends to all others: that is the naive "
            "algorithm, not the ring.",
            "All p-1 messages of a rank go to the same neighbour, (r + 1) mod p.",
        ),
    ),
)
