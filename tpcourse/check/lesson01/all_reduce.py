"""Exercise `ring_all_reduce(x, group)`: [n] -> [n] for any n, at most 2(p-1) chunks of ceil(n/p)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.misconceptions import Finding, Misconception, by_fault, by_outputs
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

Inputs = list[dict[str, Any]]


def cases(world_size: int) -> list[Case]:
    """Even lengths first, then lengths that p does not divide, then one that is shorter than the group."""
    sizes = group_sizes(world_size)
    even = [one_group(p, world_size, n=p * length) for p, length in zip(sizes, (3, 4, 2), strict=False)]
    odd = [one_group(p, world_size, n=p * length + p - 1) for p, length in zip(sizes, (3, 1, 2), strict=False)]
    return [*even, *odd, one_group(sizes[-1], world_size, n=1, edge=True)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """An array for each rank."""
    return [{"x": nonzero(generator, case.sizes["n"])} for _ in range(case.p)]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The sum, on every rank."""
    return [_xs(inputs).sum(0)] * case.p


def budget(case: Case, inputs: Inputs) -> Budget:
    """2(p-1) messages of at most ceil(n/p) elements; what a rank lacks is at least n bytes of sums."""
    n, p, width = case.sizes["n"], case.p, inputs[0]["x"].itemsize
    least = (n * width if p > 1 else 0,) * p
    sent = (2 * (p - 1) * -(-n // p) * width,) * p
    return Budget(sent=sent, received=least, messages=(2 * (p - 1),) * p, ring=True)


def _xs(inputs: Inputs) -> np.ndarray:
    return np.stack([given["x"] for given in inputs])


def _even_part(case: Case) -> int:
    return case.sizes["n"] - case.sizes["n"] % case.p


def _tail_left(finding: Finding) -> bool:
    """Right as far as p divides, and wrong, or cut off, after it; lengths that p divides were right."""
    evidence, end = finding.evidence, _even_part(finding.evidence.case)
    if evidence.right or end == evidence.case.sizes["n"] or not _ran_even(finding):
        return False
    outputs = evidence.outputs
    return evidence.finished and all(
        isinstance(a, np.ndarray) and len(a) >= end and np.allclose(a[:end], b[:end])
        for a, b in zip(outputs, evidence.expected, strict=True)
    )


def _ran_even(finding: Finding) -> bool:
    return any(other.right for other in finding.others if _even_part(other.case) == other.case.sizes["n"])


def _padding_kept(finding: Finding) -> bool:
    evidence, n = finding.evidence, finding.evidence.case.sizes["n"]
    padded = -(-n // evidence.p) * evidence.p
    return n < padded and evidence.finished and all(
        isinstance(a, np.ndarray) and a.shape == (padded,) and np.allclose(a[:n], b)
        for a, b in zip(evidence.outputs, evidence.expected, strict=True)
    )


def _divides_only(finding: Finding) -> bool:
    evidence = finding.evidence
    return bool(not evidence.finished and _ran_even(finding) and _even_part(evidence.case) != evidence.case.sizes["n"])


def _one_share_missing(finding: Finding) -> bool:
    """Every wrong element lacks exactly one rank's share."""
    xs = _xs(finding.evidence.inputs)
    return _each_is(finding, [xs.sum(0) - x for x in xs])


def _two_shares_only(finding: Finding) -> bool:
    xs, p = _xs(finding.evidence.inputs), finding.evidence.p
    return p > 2 and _each_is(finding, [xs[r] + xs[(r + 1) % p] for r in range(p)])


def _single_shares(finding: Finding) -> bool:
    return _each_is(finding, list(_xs(finding.evidence.inputs)))


def _each_is(finding: Finding, candidates: list[np.ndarray]) -> bool:
    """Whether every element of every result is that of one of the candidates, and not the expected one."""
    evidence = finding.evidence
    if not evidence.finished or evidence.right:
        return False
    total = evidence.expected[0]
    if not all(isinstance(a, np.ndarray) and a.shape == total.shape for a in evidence.outputs):
        return False
    near = [np.isclose(np.stack(evidence.outputs), candidate) for candidate in candidates]
    return bool(np.logical_or.reduce(near).all())


def _half(finding: Finding) -> bool:
    """Some chunk is complete on each rank, and the complete chunks were not passed on."""
    evidence = finding.evidence
    if not evidence.finished or evidence.right or any(len(o.sends) > evidence.p - 1 for o in evidence.outcomes):
        return False
    total = evidence.expected[0]
    outputs = [a for a in evidence.outputs if isinstance(a, np.ndarray) and a.shape == total.shape]
    return len(outputs) == evidence.p and bool(np.isclose(np.stack(outputs), total).any(0).all())


def _counted_again(evidence: Evidence) -> list[np.ndarray]:
    """The running total itself is sent in each of p - 1 steps."""
    totals = list(_xs(evidence.inputs))
    for _ in range(evidence.p - 1):
        totals = [totals[r] + totals[(r - 1) % evidence.p] for r in range(evidence.p)]
    return totals


EXERCISE = Exercise(
    name="ring_all_reduce",
    values="every rank returns the sum of all ranks' x, for lengths that p divides, does not divide, and below p",
    communication="only send and receive, 2(p-1) messages to one neighbour, 2(p-1) chunks of ceil(n/p) a rank at most",
    cases=cases,
    free=("n",),
    make=make,
    expected=expected,
    budget=budget,
    misconceptions=(
        Misconception(
            "padding kept",
            _padding_kept,
            "The padding came back: the result is as long as the padded x, not as x.",
            "Cut the result to the length of x before you return it: `[: x.numel()]`.",
        ),
        Misconception(
            "only if p divides n",
            _tail_left,
            "This works only if p divides n: the elements behind p * (n // p) are in no chunk and "
            "were not summed.",
            "Cut x into p chunks that differ by one at most, `x.tensor_split(p)`, or pad it to p * "
            "ceil(n / p).",
        ),
        Misconception(
            "fails unless p divides n",
            _divides_only,
            "Lengths that p divides pass, and the first that p does not divide fails: the chunks are "
            "not all equally long.",
            "Receive into `torch.empty_like(chunk)` of the chunk that arrives, or pad x to p * ceil(n / p).",
        ),
        by_outputs(
            "average",
            lambda e: [total / e.p for total in e.expected],
            "The result is the average: it is the sum divided by p.",
            "An all-reduce adds; who wants the average divides afterwards.",
        ),
        Misconception(
            "no second phase",
            _half,
            "Each rank holds the complete sum of one chunk only: the second phase, which passes the "
            "sums round, is missing.",
            "A reduce-scatter and then an all-gather: p-1 more steps that copy what arrives and add nothing.",
        ),
        Misconception(
            "single shares",
            _single_shares,
            "Every element is that of one single rank: nothing was added to the chunks, or the second phase passes on "
            "chunks in which no sum ended.",
            "In the first p-1 steps add what arrives to the own chunk. The chunk that the last of them completes is "
            "the first to be passed on; then copy what arrives.",
        ),
        Misconception(
            "overwrites",
            _two_shares_only,
            "Each element holds the shares of two ranks only: the chunk that a rank still had to send was "
            "overwritten by what arrived. Two ranks cannot show this.",
            "In the first phase `mine += received`: what goes out next is the sum so far.",
        ),
        Misconception(
            "one share missing",
            _one_share_missing,
            "Every element lacks the share of one rank: the last addition of the first phase is missing.",
            "The first phase has p-1 steps, and each of them adds what arrived, the last one too.",
        ),
        by_outputs(
            "counted again",
            _counted_again,
            "Shares are counted more than once: each step sends the running total, which holds what was sent before. "
            "Two ranks cannot show this.",
            "Pass on only what has just arrived, or cut x into chunks and let each chunk go round once.",
        ),
        by_fault(
            "gathers everything",
            "bytes",
            "The sums are right and too much is sent: gathering every rank's whole x and adding it "
            "up costs (p-1) n bytes.",
            "Let the sum of each chunk travel, not the chunks: reduce-scatter, then all-gather, "
            "2(p-1)/p n bytes.",
        ),
    ),
)
