"""Exercise `ring_reduce_scatter(x, group)`: [n] -> [n/p], rank r holds the sum of chunk r."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.misconceptions import Finding, Misconception, by_fault, by_outputs
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

Inputs = list[dict[str, Any]]


def cases(world_size: int) -> list[Case]:
    """Lengths that p divides, another in each group."""
    sizes = group_sizes(world_size)
    found = [one_group(p, world_size, n=p * length) for p, length in zip(sizes, (5, 2, 3), strict=False)]
    return [*found, one_group(sizes[-1], world_size, n=sizes[-1], edge=True)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """A whole array for each rank."""
    return [{"x": nonzero(generator, case.sizes["n"])} for _ in range(case.p)]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """Chunk r of the sum on rank r."""
    return list(_chunks(inputs).sum(0))


def budget(case: Case, inputs: Inputs) -> Budget:
    """p - 1 messages of one chunk: (p-1)/p n bytes."""
    every = ((case.p - 1) * inputs[0]["x"].nbytes // case.p,) * case.p
    return Budget(sent=every, received=every, messages=(case.p - 1,) * case.p, ring=True)


def _chunks(inputs: Inputs) -> np.ndarray:
    """[rank, chunk, n/p]"""
    return np.stack([given["x"] for given in inputs]).reshape(len(inputs), len(inputs), -1)


def _turn(evidence: Evidence) -> int:
    """1 if messages go to the right neighbour, -1 if to the left."""
    members, sends = evidence.case.members, evidence.outcomes[0].sends
    return -1 if sends and sends[0].peer == members[-1] and evidence.p > 2 else 1


def _neighbours_chunk(finding: Finding) -> bool:
    evidence = finding.evidence
    total = evidence.expected
    return any(evidence.would_give([total[(r + by) % evidence.p] for r in range(evidence.p)]) for by in (1, -1))


def _without_own(evidence: Evidence) -> list[np.ndarray]:
    chunks = _chunks(evidence.inputs)
    return [evidence.expected[r] - chunks[r, r] for r in range(evidence.p)]


def _never_added(finding: Finding) -> bool:
    chunks, p = _chunks(finding.evidence.inputs), finding.evidence.p
    return any(finding.evidence.would_give([chunks[(r + by) % p, r] for r in range(p)]) for by in range(1, p))


def _own_chunks(evidence: Evidence) -> list[np.ndarray]:
    return [chunks[rank] for rank, chunks in enumerate(_chunks(evidence.inputs))]


def _middle_lost(evidence: Evidence) -> list[np.ndarray]:
    chunks, p, turn = _chunks(evidence.inputs), evidence.p, _turn(evidence)
    return [chunks[r, r] + chunks[(r + turn) % p, r] for r in range(p)]


def _own_chunks_sent(evidence: Evidence) -> list[np.ndarray]:
    chunks, p, turn = _chunks(evidence.inputs), evidence.p, _turn(evidence)
    return [chunks[r, r] + chunks[(r - turn) % p, r] for r in range(p)]


EXERCISE = Exercise(
    name="ring_reduce_scatter",
    values="rank r returns the sum of all ranks' chunk r, in a tensor of its own; x is unchanged",
    communication="only send and receive, p-1 messages to one neighbour, (p-1)/p n bytes a rank",
    cases=cases,
    free=("n",),
    make=make,
    expected=expected,
    budget=budget,
    misconceptions=(
        Misconception(
            "neighbour's chunk",
            _neighbours_chunk,
            "The sums are complete, and each is on the rank beside the one that should hold it: the "
            "ring began one chunk off.",
            "Chunk r ends on rank r if rank r sends chunk (r - 1) mod p in the first step.",
        ),
        by_outputs(
            "last add missing",
            _without_own,
            "The last addition is missing: each sum lacks the share of the rank that holds it.",
            "What arrives in the last step has passed every other rank; add this rank's own chunk to "
            "it as well.",
        ),
        by_outputs(
            "average",
            lambda e: [total / e.p for total in e.expected],
            "The result is the average: it is the sum divided by p.",
            "A reduce-scatter adds; who wants the average divides afterwards.",
        ),
        by_outputs(
            "another chunk",
            _own_chunks,
            "Each rank returns chunk r of its own x as it was: the sums ended in another chunk than the one returned, "
            "or nothing was added at all.",
            "Chunk r ends on rank r if rank r sends chunk (r - 1) mod p in the first step and adds what arrives.",
        ),
        Misconception(
            "never adds",
            _never_added,
            "Each rank returns one single rank's chunk: chunks travelled round the ring and nothing "
            "was added to them.",
            "Add the rank's own chunk to what arrives, before it is passed on.",
        ),
        by_outputs(
            "overwrites",
            _middle_lost,
            "The chunk that a rank still had to send was overwritten by what arrived, so the shares of the ranks "
            "in between are lost. Two ranks have none in between, and cannot show this.",
            "`mine += received`, not `mine = received`: what goes out next is the sum so far.",
        ),
        by_outputs(
            "sends its own chunk",
            _own_chunks_sent,
            "Only the neighbour's share arrives: each step sends a chunk of x as it was, not the sum "
            "collected so far.",
            "Keep the partial sums in a copy of x, and send from the copy.",
        ),
        by_fault(
            "gathers everything",
            "bytes",
            "The sums are right and too much is sent: whole arrays travel, although a rank needs the "
            "sum of one chunk.",
            "Send one chunk in each of p-1 steps, already added up: (p-1)/p n bytes.",
        ),
        by_fault(
            "direct",
            "ring",
            "The sums and the bytes are right, but each rank sends to all others: that is the naive "
            "algorithm, not the ring.",
            "All p-1 messages of a rank go to the same neighbour, (r + 1) mod p.",
        ),
    ),
)
