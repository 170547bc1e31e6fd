"""What the exercises of lesson 04 share: gradients of one device, rules of communication, misconceptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tpcourse.check.budget import Fault, carried_bytes
from tpcourse.check.evidence import Evidence
from tpcourse.check.lesson04.recipe import NUM_BYTES, TIED_BYTES
from tpcourse.check.misconceptions import Finding, Misconception, by_fault, by_outputs
from tpcourse.check.waiting import MARK

Gradients = list[np.ndarray]
Rule = Callable[[Evidence], Fault | None]
COURSE = ("average_gradients", "average_in_buckets", "_average", "broadcast_tensors", "count_over_ranks")


def of_sum(given: dict[str, Any], weights: dict[str, np.ndarray] | None = None) -> Gradients:
    """Gradients of the sum of squared errors of one rank's examples, with its weights or others."""
    from tpcourse.check.lesson04.nets import gradients

    return gradients(weights or given["model"].weights, given["x"], given["y"])


def of_mean(given: dict[str, Any], weights: dict[str, np.ndarray] | None = None) -> Gradients:
    """Gradients of the mean squared error of one rank's examples; not a number where it has none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return [gradient / np.float64(given["y"].size) for gradient in of_sum(given, weights)]


def _outside(evidence: Evidence) -> bool:
    """Whether some call left the group that was given."""
    return any(tuple(e.group) != evidence.case.members for outcome in evidence.outcomes for e in calls_of(outcome))


def added(rows: Iterable[Gradients], factor: float = 1.0) -> Gradients:
    """Their sum, times a factor."""
    return [factor * sum(parts) for parts in zip(*rows, strict=True)]


def scaled(factor: Callable[[Evidence], float]) -> Callable[[Evidence], list[Any]]:
    """What ranks return if the right result is multiplied by a factor."""
    return lambda evidence: [added([result], factor(evidence)) for result in evidence.expected]


def calls_of(outcome: Any) -> list[Any]:
    """A rank's calls, without the mark that the model leaves."""
    return [event for event in outcome.events if event.function != MARK]


def rules(*more: Rule, ops: tuple[str, ...] = ("all_reduce",), num_calls: int, num_bytes: int, given: int = 0) -> Rule:
    """The rules of an exercise: operations, group, `num_bytes` averaged, `given` broadcast, calls; then `more`."""

    def judge(evidence: Evidence) -> Fault | None:
        for rank, outcome in enumerate(evidence.outcomes):
            fault = _call_fault(evidence, rank, calls_of(outcome), ops)
            fault = fault or _size_fault(evidence, rank, calls_of(outcome), num_calls, num_bytes, given)
            if fault:
                return fault
        return next((fault for rule in (*more, all_waited) if (fault := rule(evidence))), None)

    return judge


def _call_fault(evidence: Evidence, rank: int, calls: list[Any], ops: tuple[str, ...]) -> Fault | None:
    for event in calls:
        if event.function in COURSE:
            return Fault("course", f"rank {rank} lets tpcourse.data make its calls")
        if event.op not in ops:
            return Fault("operation", f"rank {rank} calls {event.op}; the budget has {' and '.join(ops)} only")
        if tuple(event.group) != evidence.case.members:
            return Fault("group", f"rank {rank} calls {event.op} outside the group that was given")
    return None


def _size_fault(
    evidence: Evidence, rank: int, calls: list[Any], num_calls: int, num_bytes: int, given: int
) -> Fault | None:
    p, carried = evidence.p, {"all_reduce": 0, "broadcast": 0}
    for event in calls:
        carried[event.op] += carried_bytes(event)
    if carried["all_reduce"] < NUM_BYTES and p > 1:
        return Fault("silence", f"rank {rank} averages {carried['all_reduce']} bytes; the gradients have {NUM_BYTES}")
    for op, most in (("all_reduce", num_bytes), ("broadcast", given)):
        if carried[op] > most:
            return Fault("bytes", f"rank {rank} puts {carried[op]} bytes into {op}, the budget is {most}")
    if len(calls) > num_calls:
        return Fault("calls", f"rank {rank} makes {len(calls)} calls, the budget is {num_calls}")
    return None


def all_waited(evidence: Evidence) -> Fault | None:
    """The fault of an answer that returns and has not waited for all of its own asynchronous calls."""
    for rank, outcome in enumerate(evidence.outcomes):
        if left := outcome.unwaited:
            return Fault("handles", f"rank {rank} returns without a wait for {len(left)} of its calls")
    return None


def tied_again(finding: Finding) -> bool:
    """Whether what is over the budget is the tied matrix."""
    over = [
        sum(e.numel * 8 for e in calls_of(outcome) if e.op == "all_reduce") - NUM_BYTES
        for outcome in finding.evidence.outcomes
    ]
    return finding.fault_kind == "bytes" and set(over) == {TIED_BYTES}


def own(evidence: Evidence) -> list[Any]:
    """What ranks return if each returns its own gradients."""
    return [of_mean(given) for given in evidence.inputs]


def same_everywhere(evidence: Evidence, result: Gradients) -> list[Any]:
    """This result on every rank."""
    return [result] * evidence.p


SUM_FOR_MEAN = by_outputs(
    "sum for mean",
    scaled(lambda evidence: evidence.p),
    "The result is p times too large: gradients were added over the ranks, and the loss of the whole batch is a mean.",
    "Divide by p, before the all-reduce or after it; or ask NCCL for `op=dist.ReduceOp.AVG`.",
)
NOT_AVERAGED = by_outputs(
    "not averaged",
    own,
    "Each rank returns the gradients of its own examples: they were not averaged, or the average was not copied back.",
    "`dist.all_reduce` writes into the tensor that it is given; `torch.cat` makes a copy, so the average has to go "
    "back into each `w.grad`.",
)
COMMON = (
    by_fault(
        "course's own",
        "course",
        "The answer calls the course's own version; this exercise writes it.",
        "Use `dist.all_reduce` yourself; from tpcourse nothing is needed here.",
    ),
    by_fault(
        "other operation",
        "operation",
        "The values are right, and another collective brought them: gradients have to be averaged, not gathered.",
        "One `dist.all_reduce` of each gradient, or of each bucket, is all that has to travel.",
    ),
    Misconception(
        "handles",
        lambda finding: finding.fault_kind == "handles",
        "Not every handle is waited for: that a later sum has ended does not say that an earlier one has.",
        "Keep the handle of every call, and `wait` on each before you read what it brings.",
    ),
    Misconception(
        "no group",
        lambda finding: _outside(finding.evidence),
        "A call lacks `group=` and goes over the world: ranks outside the group never make it, and the others wait.",
        "Pass `group=group` to every call.",
    ),
)


def none_left(name: str, sentence: str, hint: str) -> Misconception:
    """A misconception for ranks that got no gradient and raised for that."""
    return Misconception(name, lambda f: "NoneType" in f.error, sentence, hint)
