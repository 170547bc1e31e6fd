"""What the exercises of lesson 07 share: cases, the rules of communication, lines and misconceptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, Fault, sent_bytes
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson05.common import UNWAITED, unwaited_fault
from tpcourse.check.misconceptions import Finding, Misconception, by_fault
from tpcourse.check.misconceptions import by_playing as by_playing
from tpcourse.check.report import FAILED, PASSED, Line
from tpcourse.check.spec import one_group

Inputs = list[dict[str, Any]]
Rule = Callable[[Evidence], Fault | None]
OWN = ("tpcourse.zero", "tpcourse.data", "tpcourse.block", "tpcourse.train")
"""The packages that are no answer: the exercises write what is in them."""
SLOW = ("torch._dynamo",)
"""What torch imports, for seconds, when it first makes an optimizer or watches its operations."""
BYTES = 8
"""A float64's."""
HELD = "bytes held"


def dp_case(p: int, world_size: int, edge: bool = False, **sizes: Any) -> Case:
    """A case with one group `dp` of p ranks, which are not the world's first ones."""
    return one_group(p, world_size, axis="dp", edge=edge, **sizes)


def rules(calls: dict[str, list[int]], least: int = 0, also: tuple[str, ...] = (), then: Rule | None = None) -> Budget:
    """Operation -> bytes of the whole array of each call; the budget is what they send together.

    `least` has to be sent by every rank; `also` names operations that may take the place of others; `then` is one
    rule more.
    """

    def judge(evidence: Evidence) -> Fault | None:
        for rank, outcome in enumerate(evidence.outcomes):
            fault = _group_fault(evidence, rank, outcome.events)
            if fault := fault or _calls_fault(evidence.p, rank, outcome.events, calls, least, also):
                return fault
        if fault := then(evidence) if then else None:
            return fault
        late = (fault for rank, outcome in enumerate(evidence.outcomes) if (fault := unwaited_fault(rank, outcome)))
        return next(late, None)

    return Budget(judge=judge)


def _group_fault(evidence: Evidence, rank: int, events: list[Any]) -> Fault | None:
    outside = [event.op for event in events if tuple(event.group) != evidence.case.members]
    return Fault("group", f"rank {rank} calls {outside[0]} outside the group dp") if outside else None


def _calls_fault(
    p: int, rank: int, events: list[Any], calls: dict[str, list[int]], least: int, also: tuple[str, ...]
) -> Fault | None:
    made, sent = Counter(event.op for event in events), sum(event.bytes_sent for event in events)
    budget = sum(sent_bytes(op, size, p) for op, sizes in calls.items() for size in sizes)
    what, most = f"rank {rank} calls {listed(made)}", sum(map(len, calls.values()))
    if sent > budget:
        return Fault("bytes", f"{what}: {sent:,} bytes sent, the budget is {budget:,}")
    if others := sorted(set(made) - {*calls, *also}):
        return Fault("operation", f"{what}; {others[0]} is not in the budget")
    if made.total() > most:
        return Fault("calls", f"{what}: {made.total()} calls, the budget is {most}")
    if sent < least:
        return Fault("silence", f"{what}: {sent:,} bytes sent, and at least {least:,} have to be")
    return None


def listed(made: Counter[str]) -> str:
    """ "all_gather twice" and the like."""
    times = {1: "once", 2: "twice"}
    return ", ".join(f"{op} {times.get(n, f'{n} times')}" for op, n in sorted(made.items())) or "nothing"


def held_line(cases: list[Evidence], over: Callable[[Evidence, int], str], passed: str, axis: str = HELD) -> Line:
    """The third axis: the first thing that `over` says of some rank of a case, the largest case first."""
    for evidence in reversed(cases):
        for rank in range(evidence.p):
            if text := over(evidence, rank):
                return Line(axis, FAILED, f"rank {rank} {text} (at {evidence.case})")
    return Line(axis, PASSED, passed)


def by_line(name: str, shows: Callable[[Evidence, int], bool], sentence: str, hint: str, axis: str = HELD) -> Any:
    """A misconception behind a third axis that failed: what a rank of some case shows."""

    def found(finding: Finding) -> bool:
        cases = (finding.evidence, *finding.others)
        return finding.fault_kind == axis and any(shows(e, rank) for e in cases for rank in range(e.p))

    return Misconception(name, found, sentence, hint)


def calls_of(evidence: Evidence, op: str) -> int:
    """How often rank 0 of the group calls an operation."""
    return sum(event.op == op for event in evidence.outcomes[0].events)


def over_with(name: str, op: str, sentence: str, hint: str) -> Misconception:
    """The values are right, and this operation makes it more than the budget."""

    def shows(finding: Finding) -> bool:
        over = finding.fault_kind in ("bytes", "operation")
        return finding.evidence.right and over and calls_of(finding.evidence, op) > 0

    return Misconception(name, shows, sentence, hint)


def scaled(factor: Callable[[Evidence], float]) -> Callable[[Evidence], list[Any]]:
    """What ranks return if arrays of the right result are multiplied by a factor."""
    return lambda evidence: [factor(evidence) * row for row in evidence.expected]


def joined(pieces: Iterable[np.ndarray]) -> np.ndarray:
    """Pieces side by side."""
    return np.concatenate(list(pieces))


BORROWED = by_fault(
    "borrowed",
    "borrowed",
    "The answer calls a finished part of the course; writing it is the exercise.",
    "Use `torch.optim`, `dist` and `tpcourse.wire`.",
)
FIRST = (BORROWED, UNWAITED)
OVER_BUDGET = Misconception(
    "over budget",
    lambda f: f.evidence.right and f.fault_kind in ("bytes", "operation", "calls"),
    "The values are right, and more travels than the budget allows: a call too many, or another one than is needed.",
    "Compare the calls that the line above counts with those of the budget: which one brings nothing new?",
)
