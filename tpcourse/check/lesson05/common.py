"""What the exercises of lesson 05 share: cases, rules of communication, misconceptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, Fault, carried_bytes
from tpcourse.check.compare import agree
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.misconceptions import Finding, Misconception, by_fault
from tpcourse.check.spec import group_sizes, one_group

PROBE = "lesson05.in_rank"
RETURNED = "the answer returned"
"""How the error begins that an answer gets for returning something else than its tensor."""


@dataclass(frozen=True)
class Sums:
    """What a rank may add up over one axis: at most so many calls and float64 elements in all, so many of them in
    forward, and at least `least` (all, unless it is given).
    """

    calls: int
    elements: int
    forward: int
    least: int | None = None


def cases(**sizes: tuple[int, ...]) -> Callable[[int], list[Case]]:
    """A case for each size of group, each with the next value of every size."""

    def of(world_size: int) -> list[Case]:
        rows: list[dict[str, Any]] = [dict(zip(sizes, row, strict=True)) for row in zip(*sizes.values(), strict=True)]
        ps = group_sizes(world_size)
        return [one_group(p, world_size, axis="tp", **row) for p, row in zip(ps, rows, strict=False)]

    return of


def rules(pairs: bool = True, **sums: Sums) -> Budget:
    """All-reduces only, on these axes, each within its sums; `pairs` of the course may make them, or may not."""

    def judge(evidence: Evidence) -> Fault | None:
        for rank, outcome in enumerate(evidence.outcomes):
            fault = _borrowed(rank, outcome, pairs) or unwaited_fault(rank, outcome)
            fault = fault or _call_fault(evidence, rank, outcome, sums)
            fault = fault or next((f for axis in sums if (f := _size_fault(rank, outcome, axis, sums[axis]))), None)
            if fault:
                return fault
        return None

    return Budget(judge=judge)


def _borrowed(rank: int, outcome: Any, pairs: bool) -> Fault | None:
    name = outcome.facts["own"] or ("" if pairs else outcome.facts["pair"])
    return Fault("borrowed", f"rank {rank} calls {name}; this exercise writes it") if name else None


def unwaited_fault(rank: int, outcome: Any) -> Fault | None:
    """A call that a rank began with `async_op=True`, and of which it never hears that it is over."""
    late = outcome.unwaited
    return Fault(UNWAITED.name, f"rank {rank} begins {late[0]} and never waits for it") if late else None


def _call_fault(evidence: Evidence, rank: int, outcome: Any, sums: dict[str, Sums]) -> Fault | None:
    for event in outcome.events:
        if event.op != "all_reduce":
            return Fault("operation", f"rank {rank} calls {event.op}; the budget has all_reduce only")
        if event.axis not in sums:
            return Fault("group", f"rank {rank} calls all_reduce on {event.axis}, not on {' or '.join(sums)}")
    return None


def _size_fault(rank: int, outcome: Any, axis: str, allowed: Sums) -> Fault | None:
    sizes = [carried_bytes(event) if event.axis == axis else 0 for event in outcome.events]
    carried, forward, num_calls = sum(sizes), sum(sizes[: outcome.facts["forward"]]), sum(map(bool, sizes))
    least = 8 * (allowed.elements if allowed.least is None else allowed.least)
    for where, size, most in (("", carried, 8 * allowed.elements), (" in forward", forward, 8 * allowed.forward)):
        if size > most:
            return Fault("bytes", f"rank {rank} adds up {size} bytes on {axis}{where}, the budget is {most}")
    if carried < least:
        return Fault("silence", f"rank {rank} adds up {carried} bytes on {axis}; {least} have to be added up")
    if num_calls > allowed.calls:
        return Fault("calls", f"rank {rank} makes {num_calls} calls on {axis}, the budget is {allowed.calls}")
    return None


def by_playing(name: str, sentence: str, hint: str, *ways: Callable[[Evidence], list[Any]]) -> Misconception:
    """A misconception that shows in what some case's ranks return: the same as when the mistake is played here."""
    return Misconception(name, plays(*ways), sentence, hint)


def plays(*ways: Callable[[Evidence], list[Any]]) -> Callable[[Finding], bool]:
    """Whether some case's ranks return the same as when the mistake is played here, in one of these ways."""

    def shows(finding: Finding) -> bool:
        return any(e.finished and not e.right and _one_of(e, ways) for e in (finding.evidence, *finding.others))

    return shows


def _one_of(evidence: Evidence, ways: tuple[Callable[[Evidence], list[Any]], ...]) -> bool:
    outputs = [_filled(*pair) for pair in zip(evidence.outputs, evidence.expected, strict=True)]
    with np.errstate(all="ignore"):
        return any(all(map(agree, outputs, way(evidence))) for way in ways)


def _filled(output: Any, expected: Any) -> Any:
    """Zeros for a gradient that is not there, as played here."""
    if not _alike(output, expected):
        return output
    return [np.zeros_like(b) if a is None else a for a, b in zip(output, expected, strict=True)]


def _alike(output: Any, expected: Any) -> bool:
    """Whether both are lists, of one length."""
    return isinstance(output, list) and isinstance(expected, list) and len(output) == len(expected)


def by_call(name: str, is_it: Callable[[Any, dict[str, Any]], bool], sentence: str, hint: str) -> Misconception:
    """A misconception that one call gives away: `is_it` gets the call and the rank's arguments; also in a hang."""

    def shows(finding: Finding) -> bool:
        pairs = zip(finding.evidence.outcomes, finding.evidence.inputs, strict=True)
        return any(is_it(event, given) for outcome, given in pairs for event in outcome.events)

    return Misconception(name, shows, sentence, hint)


def sums_a(name: str) -> Callable[[Any, dict[str, Any]], bool]:
    """Whether a call is the all-reduce of something in an argument's shape."""
    return lambda event, given: event.op == "all_reduce" and event.shape == given[name].array.shape


def gathers(event: Any, given: dict[str, Any]) -> bool:
    """Whether a call is an all-gather."""
    return event.op == "all_gather"


def first_only(index: int) -> Callable[[Finding], bool]:
    """Whether entry `index` of the result is right on the group's first rank and nothing, or zeros, elsewhere."""

    def shows(finding: Finding) -> bool:
        evidence = finding.evidence
        if not evidence.finished or not all(isinstance(o, list) and len(o) > index for o in evidence.outputs):
            return False
        first, *others = [output[index] for output in evidence.outputs]
        return agree(first, evidence.expected[0][index]) and all(o is None or not np.any(o) for o in others)

    return shows


def _left_out(finding: Finding) -> bool:
    """Whether gradients of biases are missing on every rank, and no others."""
    evidence = finding.evidence
    pairs = list(zip(evidence.outputs, evidence.expected, strict=True))
    if not evidence.finished or not all(_alike(*pair) for pair in pairs):
        return False
    missing = [{name for name, a in zip(b.names, output, strict=True) if a is None} for output, b in pairs]
    return bool(missing[0]) and all(names == missing[0] for names in missing) and all("bias" in n for n in missing[0])


def _cut_off(finding: Finding) -> bool:
    lists = [output for output in finding.evidence.outputs if isinstance(output, list)]
    return finding.evidence.finished and bool(lists) and all(None in map(_kind, output[1:]) for output in lists)


def _on_one_rank(finding: Finding) -> bool:
    """Whether what ranks add up goes to one rank of a group by `reduce`, and no call but an all-reduce brings more."""
    evidence = finding.evidence
    events = [event for outcome in evidence.outcomes for event in outcome.events]
    roots = {(event.group, event.peer) for event in events if event.op == "reduce"}
    one_each = 0 < len(roots) == len({group for group, _ in roots})
    return evidence.finished and not evidence.right and one_each and {e.op for e in events} <= {"reduce", "all_reduce"}


def _kind(value: Any) -> Any:
    return None if value is None else type(value)


WORLD = by_call(
    "world",
    lambda event, given: event.axis == "world",
    "A sum runs over the world: ranks that are not in `tp` were never asked to take part in it.",
    "Pass the group to every call: `group=tp`.",
)
BORROWED = by_fault(
    "borrowed",
    "borrowed",
    "The answer calls the course's own kernel or pair; this exercise writes it.",
    "The task names what you may use. `dist.all_reduce` and the rank's own products are enough.",
)
NOT_A_TENSOR = Misconception(
    "not a tensor",
    lambda f: RETURNED in f.error,
    "The result has to be one tensor: what came back is something else, or has something beside it.",
    "Return the tensor alone: nothing around it, nothing beside it, and neither `.item()` nor `.numpy()`.",
)
UNWAITED = Misconception(
    "never waited",
    lambda f: f.fault_kind == "never waited",
    "A call was begun with `async_op=True` and never waited for: what it brings may be there or not, from run to run.",
    "`work.wait()` before you use the tensor, or leave out `async_op=True`.",
)
LEFT_OUT = Misconception(
    "bias left out",
    _left_out,
    "A bias has no gradient, and all other gradients arrive: the bias has no part in y, or it was detached.",
    "Add it to the product as it is, with the graph behind it: `+ bias`.",
)
CUT_OFF = Misconception(
    "cut off",
    _cut_off,
    "A gradient never arrives: what was sent has left the graph, and backward stops there.",
    "Put the call into a `torch.autograd.Function`: its `forward` sends, and its `backward` says what comes back.",
)
OTHER_OPERATION = by_fault(
    "other operation",
    "operation",
    "The values are right, and another collective brought them: here only sums have to travel.",
    "A product over a cut dim leaves partial sums. One `dist.all_reduce` adds them up.",
)
REDUCED = Misconception(
    "on one rank",
    _on_one_rank,
    "`dist.reduce` leaves its result on one rank of the group, and the others go on without it.",
    "Every rank needs it: of torch's two calls that reduce, take the one that leaves the result on all of them.",
)
OVER_BUDGET = Misconception(
    "over budget",
    lambda f: f.evidence.right and f.fault_kind in ("bytes", "calls"),
    "The values are right, and the all-reduces are more or larger than the budget allows.",
    "Which of them adds up what is equal or complete on every rank already? And can one do the work of several?",
)
COMMON = (UNWAITED, WORLD, BORROWED, NOT_A_TENSOR)
LAST = (LEFT_OUT, CUT_OFF, REDUCED, OTHER_OPERATION, OVER_BUDGET)
