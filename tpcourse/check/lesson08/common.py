"""What the exercises of lesson 08 share: rules of traffic and order, hidden time, misconceptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tpcourse.check.budget import Budget, Fault
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson08.trace import EARLY, OVERWRITTEN, Rule, moments
from tpcourse.check.misconceptions import Misconception
from tpcourse.check.misconceptions import by_playing as by_playing
from tpcourse.check.report import BLOCKED, FAILED, PASSED, Line
from tpcourse.check.spec import group_sizes, one_group
from tpcourse.timeline.span import hidden

Inputs = list[dict[str, Any]]
OWN = ("tpcourse.overlap", "tpcourse.linear", "tpcourse.sequence", "tpcourse.conjugates")
"""The packages that are no answer: the exercises write what is in them."""
SLOW = ("torch._dynamo",)
"""What torch imports, for seconds, when it first watches its operations."""
BYTES = 8
"""A float64's."""
HIDDEN = "hidden time"
LEAST = 0.15
"""E that an answer must reach on GPUs: far above noise, far below what is possible."""


def tp_cases(**sizes: tuple[int, ...]) -> Callable[[int], list[Case]]:
    """A case for each size of group, each with the next value of every size."""

    def of(world_size: int) -> list[Case]:
        found = []
        for at, p in enumerate(group_sizes(world_size)):
            here: dict[str, Any] = {name: values[at] for name, values in sizes.items()}
            found.append(one_group(p, world_size, axis="tp", **here))
        return found

    return of


def rules(ops: dict[str, int], num_bytes: int, *order: Rule, work: int, due: str = "") -> Budget:
    """Operation -> how many calls; what a rank sends in all; no race, nothing left under way; then rules of order.

    `work` is how many multiplications a rank's products have in all: what is multiplied unseen has no order. `due`
    says how many calls there have to be, in the words of the task.
    """

    def judge(evidence: Evidence) -> Fault | None:
        found = (
            fault
            for rule in (_races, *_traffic(ops, num_bytes), _unwaited)
            for rank in range(evidence.p)
            if (fault := rule(evidence, rank))
        )
        fault = next(found, None) or next((fault for rule in order if (fault := rule(evidence))), None)
        return fault or _unseen(evidence, work) or _too_few(evidence, ops, due)

    return Budget(judge=judge)


def _unseen(evidence: Evidence, work: int) -> Fault | None:
    for rank in range(evidence.p):
        seen = sum(moment.work for moment in moments(evidence, rank))
        if seen < work:
            text = f"rank {rank} multiplies {seen:,} times in products, and {work:,} are due: use linear or @"
            return Fault("unseen", text)
    return None


def _too_few(evidence: Evidence, ops: dict[str, int], due: str) -> Fault | None:
    for rank, outcome in enumerate(evidence.outcomes):
        made = Counter(event.op for event in outcome.events)
        if made != Counter(ops):
            text = f"rank {rank} calls {listed(made)}; {due or f'{listed(Counter(ops))} is'} due"
            return Fault("few", text)
    return None


def _races(evidence: Evidence, rank: int) -> Fault | None:
    races = evidence.outcomes[rank].facts.get("races", [])
    if EARLY in races:
        return Fault(EARLY, f"rank {rank} uses memory into which a call still writes: nobody waited for it")
    if OVERWRITTEN in races:
        return Fault(OVERWRITTEN, f"rank {rank} writes into memory that is still being sent")
    return None


def _unwaited(evidence: Evidence, rank: int) -> Fault | None:
    """A call of which the rank never hears that it is over; its memory may be given to somebody else."""
    if ops := evidence.outcomes[rank].unwaited:
        return Fault("never", f"rank {rank} returns, and never waited for {len(ops)} of its calls, such as {ops[0]}")
    return None


def _traffic(ops: dict[str, int], num_bytes: int) -> Iterable[Callable[[Evidence, int], Fault | None]]:
    def group(evidence: Evidence, rank: int) -> Fault | None:
        events = evidence.outcomes[rank].events
        outside = [event.op for event in events if tuple(event.group) != evidence.case.members]
        return Fault("group", f"rank {rank} calls {outside[0]} outside the group tp") if outside else None

    def calls(evidence: Evidence, rank: int) -> Fault | None:
        events = evidence.outcomes[rank].events
        made, sent = Counter(event.op for event in events), sum(event.bytes_sent for event in events)
        what = f"rank {rank} calls {listed(made)}"
        if others := sorted(set(made) - set(ops)):
            return Fault("operation", f"{what}; {others[0]} is not in the budget")
        if sent > num_bytes:
            return Fault("bytes", f"{what}: {sent:,} bytes sent, the budget is {num_bytes:,}")
        if any(made[op] > count for op, count in ops.items()):
            return Fault("calls", f"{what}; the budget is {listed(Counter(ops))}")
        if sent < num_bytes:
            return Fault("silence", f"{what}: {sent:,} bytes sent, and {num_bytes:,} have to be")
        return None

    return group, calls


def listed(made: Counter[str]) -> str:
    """ "all_gather twice" and the like."""
    times = {1: "once", 2: "twice"}
    return ", ".join(f"{op} {times.get(n, f'{n} times')}" for op, n in sorted(made.items())) or "nothing"


def hidden_line(cases: list[Evidence]) -> Line:
    """The third axis: E of the largest group, by the GPUs' clock; never judged on a CPU."""
    times = cases[-1].outcomes[0].facts.get("times")
    if times is None:
        return Line(HIDDEN, BLOCKED, "E is measured on GPUs only: on a CPU all share the same cores")
    alone_ms, serial_ms, answer_ms = (1e3 * times[name] for name in ("alone", "serial", "answer"))
    E = hidden(answer_ms, alone_ms, serial_ms)
    text = f"product alone {alone_ms:.2f} ms, one after the other {serial_ms:.2f} ms, your answer {answer_ms:.2f} ms"
    if E is None or serial_ms - alone_ms > alone_ms:
        return Line(HIDDEN, BLOCKED, f"{text}: here the product is too short to hide this communication")
    return Line(HIDDEN, PASSED if E >= LEAST else FAILED, f"E = {E:.2f}: {text}")


def by_kind(name: str, kind: str, sentence: str, hint: str) -> Misconception:
    """A misconception that the order or the calls give away, whatever the values are."""
    return Misconception(name, lambda f: f.fault_kind == kind, sentence, hint)


def by_call(name: str, op: str, sentence: str, hint: str) -> Misconception:
    """A misconception that shows in the first operation that is not in the budget."""
    text = f"; {op} is not in the budget"
    return Misconception(name, lambda f: f.fault_kind == "operation" and text in f"{f.fault}", sentence, hint)


BORROWED = by_kind(
    "borrowed",
    "borrowed",
    "The answer calls a finished kernel of the course; writing it is the exercise.",
    "Use `dist`, `pass_on` and what the first cell imports from torch.",
)
TOO_EARLY = by_kind(
    "never waits",
    EARLY,
    "What comes is used before anybody waited for it: values are right only where messages happen to be fast.",
    "`work.wait()` between the call that begins and the first line that reads what it brings.",
)
OVERWRITES = by_kind(
    "overwrites",
    OVERWRITTEN,
    "A buffer is overwritten while it is in flight: the other rank may get the new numbers, or half of them.",
    "A tensor that is being sent is read-only until its work was waited for. Use another one, and wait for **all** "
    "works, those of sends as well as those of receives.",
)
LEFT = by_kind(
    "left under way",
    "never",
    "The answer returns while a call is under way: the caller cannot know when its memory is safe to use.",
    "Wait for every work before you return.",
)
NO_GAIN = by_kind(
    "no gain",
    HIDDEN,
    "The order is right, and the clock says that nothing is gained: something beside it makes the GPU or the CPU wait.",
    "Look for copies, `.item()`, `.cpu()`, a synchronize, or products that were cut too small.",
)
BARRIER = by_call(
    "barrier",
    "barrier",
    "A barrier is not in the budget: in it all ranks wait for the slowest one, and nothing here needs that.",
    "`work.wait()` is all that the result of a call needs.",
)
FIRST = (BORROWED, TOO_EARLY, BARRIER)
LAST = (OVERWRITES, LEFT, NO_GAIN)
