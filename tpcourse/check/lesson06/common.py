"""What the exercises of lesson 06 share: cases, the rules of communication, misconceptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.budget import Fault, sent_bytes
from tpcourse.check.compare import agree
from tpcourse.check.evidence import Evidence
from tpcourse.check.lesson05.common import NOT_A_TENSOR, UNWAITED, unwaited_fault
from tpcourse.check.misconceptions import Finding, Misconception

LAYERS = ("tpcourse.linear", "tpcourse.overlap", "tpcourse.sequence", "tpcourse.block", "tpcourse.vocab")
"""The packages that are no answer: the exercises write what is in them."""
Rule = Callable[[Evidence], Fault | None]
Calls = dict[str, tuple[int, int]]


def rules(allowed: Calls) -> Rule:
    """The rules of an exercise: operation -> (how often, bytes of the whole array); the budget is their sum."""

    def judge(evidence: Evidence) -> Fault | None:
        return next((fault for rank in range(evidence.p) if (fault := _fault(evidence, rank, allowed))), None)

    return judge


def _fault(evidence: Evidence, rank: int, allowed: Calls) -> Fault | None:
    if fault := unwaited_fault(rank, evidence.outcomes[rank]):
        return fault
    events = evidence.outcomes[rank].events
    if any(tuple(event.group) != evidence.case.members for event in events):
        return Fault("group", f"rank {rank} makes a call outside the group that was given")
    made, sent = Counter(event.op for event in events), sum(event.bytes_sent for event in events)
    budget = sum(count * sent_bytes(op, n, evidence.p) for op, (count, n) in allowed.items())
    what = f"rank {rank} calls {_listed(made)}"
    if sent > budget:
        return Fault("bytes", f"{what}: {sent:,} bytes, the budget is {budget:,}")
    if any(op not in allowed for op in made):
        return Fault("operation", f"{what}; the budget has {' and '.join(allowed)} only")
    right = _listed(Counter({op: count for op, (count, _) in allowed.items()}))
    if any(made[op] > count for op, (count, _) in allowed.items()):
        return Fault("calls", f"{what}; the budget is {right}")
    if not evidence.right and any(made[op] < count for op, (count, _) in allowed.items()):
        return Fault("missing", f"{what}; the budget has {right}")
    return None


def _listed(made: Counter[str]) -> str:
    calls = [f"{op} {'once' if count == 1 else f'{count} times'}" for op, count in sorted(made.items())]
    return ", ".join(calls) or "nothing"


def calls_of(finding: Finding, op: str) -> int:
    """How often rank 0 of the group called an operation."""
    return sum(event.op == op for event in finding.evidence.outcomes[0].events)


def result_of(evidence: Evidence, index: int) -> list[Any]:
    """One of each rank's results; None where there is none."""
    outputs = [output if isinstance(output, list) else [] for output in evidence.outputs]
    return [output[index] if len(output) > index else None for output in outputs]


def gives(evidence: Evidence, index: int, wrong: list[np.ndarray]) -> bool:
    """Whether one of the results is what a wrong algorithm gives on every rank, and not what is right."""
    if not evidence.finished:
        return False
    right = [list(expected)[index] for expected in evidence.expected]
    got = result_of(evidence, index)
    same = all(agree(a, b) for a, b in zip(got, wrong, strict=True))
    return same and not all(agree(a, b) for a, b in zip(got, right, strict=True))


def is_right(evidence: Evidence, index: int) -> bool:
    """Whether one of the results is right on every rank."""
    right = [list(expected)[index] for expected in evidence.expected]
    return evidence.finished and all(agree(a, b) for a, b in zip(result_of(evidence, index), right, strict=True))


def by_result(
    name: str, index: int, wrong: Callable[[Evidence], list[np.ndarray]], sentence: str, hint: str
) -> Misconception:
    """A misconception that one of the results alone gives away."""
    return Misconception(name, lambda f: gives(f.evidence, index, wrong(f.evidence)), sentence, hint)


def double_bytes(sentence: str, hint: str) -> Misconception:
    """Right, with an all-reduce where a reduce-scatter or an all-gather is enough."""

    def shows(finding: Finding) -> bool:
        return finding.evidence.right and finding.fault_kind == "bytes" and calls_of(finding, "all_reduce") > 0

    return Misconception("double bytes", shows, sentence, hint)


def no_backward(output: int, sentence: str, hint: str) -> Misconception:
    """The output is right, and a gradient is missing: a collective of torch.distributed stands in its way."""

    def shows(finding: Finding) -> bool:
        evidence = finding.evidence
        rows = [row for row in evidence.outputs if isinstance(row, list)] if evidence.finished else []
        missing = any(item is None for row in rows for item in row)
        return (missing and is_right(evidence, output)) or "a collective has no backward" in finding.error

    return Misconception("no backward", shows, sentence, hint)


OVER_BUDGET = Misconception(
    "over budget",
    lambda f: f.evidence.right and f.fault_kind in ("bytes", "operation", "calls"),
    "The values are right, and more travels than the budget allows: a call too many, or another one than is needed.",
    "Compare the calls that the line above counts with those of the budget: which one brings nothing new?",
)
AVERAGED = "Leave out the division by p."
BORROWED = Misconception(
    "borrowed",
    lambda f: f.fault_kind == "borrowed",
    "The answer calls a finished kernel of the course; writing it is the exercise.",
    "Use `dist` and `torch.autograd.Function`, or the pairs of `tpcourse.conjugates` where the task allows them.",
)
FIRST = (UNWAITED, BORROWED, NOT_A_TENSOR)
