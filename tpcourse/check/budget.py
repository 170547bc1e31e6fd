"""The communication axis: what the ledger saw, against what the exercise allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tpcourse.check.evidence import Evidence
from tpcourse.ledger import merge
from tpcourse.ledger.traffic import share

BY_HAND = frozenset({"send", "recv"})
_WIDTHS = {"float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}  # other dtypes have 8 bytes


@dataclass(frozen=True)
class Budget:
    """What the ranks of a case may send; lists have one entry per rank of the case, in group order.

    `sent` and `messages` are upper bounds, and so is `total` on the messages of all ranks together; `received` is a
    lower one: what a rank does not hold has to arrive.
    `calls` replaces the bounds where torch's collectives are allowed: (operation, axis, bytes sent), each once.
    `judge` replaces everything: an exercise's own rules.
    """

    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    messages: tuple[int, ...] = ()
    total: int | None = None
    rounds: int | None = None
    ring: bool = False
    calls: tuple[tuple[str, str, int], ...] = ()
    judge: Callable[[Evidence], Fault | None] | None = None


@dataclass(frozen=True)
class Fault:
    """What is wrong with the communication: a kind for detectors, a sentence for the learner."""

    kind: str
    text: str


def carried_bytes(event: Any) -> int:
    """Bytes of the whole array of a call."""
    return event.numel * _WIDTHS.get(event.dtype, 8)


def sent_bytes(op: str, num_bytes: int, p: int) -> int:
    """What a rank sends in one call, of the whole array's bytes."""
    return share(2 * num_bytes if op == "all_reduce" else num_bytes, p)


def first_fault(evidence: Evidence, budget: Budget) -> Fault | None:
    """The first rule that the ranks' messages break, or None."""
    if budget.judge:
        return budget.judge(evidence)
    if budget.calls:
        return _calls_fault(evidence, budget.calls)
    rules = (
        _operation_fault, _group_fault, _order_fault, _silence_fault, _bytes_fault, _messages_fault, _ring_fault,
        _rounds_fault,
    )  # fmt: skip
    found = (rule(evidence, budget) for rule in rules)
    return next((fault for fault in found if fault), None)


def _operation_fault(evidence: Evidence, budget: Budget) -> Fault | None:
    used = Counter(event.op for outcome in evidence.outcomes for event in outcome.events)
    others = sorted(set(used) - BY_HAND)
    if not others:
        return None
    return Fault("collective", f"calls torch's {', '.join(others)}; only send and receive are allowed")


def _group_fault(evidence: Evidence, budget: Budget) -> Fault | None:
    for outcome in evidence.outcomes:
        for event in outcome.events:
            if tuple(event.group) != evidence.case.members:
                return Fault("group", f"a {event.op} went over {_over(event)}, not over the group that was given")
    return None


def _over(event: Any) -> str:
    return "the world" if event.axis == "world" else f"the group of ranks {', '.join(map(str, event.group))}"


def _order_fault(evidence: Evidence, budget: Budget) -> Fault | None:
    """Every rank waited for its first send before it began to receive: it ended only because messages were small."""
    if not all(outcome.events and outcome.events[0].op == "send" for outcome in evidence.outcomes):
        return None
    for outcome in evidence.outcomes:
        waited, receives = outcome.events[0].waited_s, [e.begin_s for e in outcome.events if e.op == "recv"]
        if waited is None or not receives or waited > min(receives):
            return None
    return Fault("sends first", "every rank waits for its send to end before it receives")


def _silence_fault(evidence: Evidence, budget: Budget) -> Fault | None:
    for rank, (outcome, least) in enumerate(zip(evidence.outcomes, budget.received, strict=True)):
        received = sum(event.bytes_received for event in outcome.events)
        if received < least:
            text = f"rank {rank} of the group received {received} bytes, fewer than the {least} that it does not hold"
            return Fault("silence", text)
    return None


def _bytes_fault(evidence: Evidence, budget: Budget) -> Fault | None:
    sent = [sum(event.bytes_sent for event in outcome.events) for outcome in evidence.outcomes]
    over = [rank for rank, (a, b) in enumerate(zip(sent, budget.sent, strict=True)) if a > b]
    if not over:
        return None
    rank = max(over, key=lambda r: sent[r] - budget.sent[r])
    who = "each rank" if len(set(sent)) == 1 else f"rank {rank} of the group"
    return Fault("bytes", f"{who} sent {sent[rank]} bytes, the budget is {budget.sent[rank]}")


def _messages_fault(evidence: Evidence, budget: Budget) -> Fault | None:
    for rank, (outcome, most) in enumerate(zip(evidence.outcomes, budget.messages, strict=True)):
        if len(outcome.sends) > most:
            text = f"rank {rank} of the group sent {len(outcome.sends)} messages, the budget is {most}"
            return Fault("messages", text)
    total = sum(len(outcome.sends) for outcome in evidence.outcomes)
    if budget.total is not None and total > budget.total:
        return Fault("messages", f"the ranks sent {total} messages together, the budget is {budget.total}")
    return None


def _ring_fault(evidence: Evidence, budget: Budget) -> Fault | None:
    members, p = evidence.case.members, evidence.p
    if not budget.ring:
        return None
    turns = {
        (members.index(event.peer) - rank) % p
        for rank, outcome in enumerate(evidence.outcomes)
        for event in outcome.sends
    }
    if len(turns) <= 1 and turns <= {1, p - 1}:
        return None
    return Fault("ring", "ranks send to more ranks than one neighbour: this is no ring")


def _rounds_fault(evidence: Evidence, budget: Budget) -> Fault | None:
    if budget.rounds is None:
        return None
    steps = merge(outcome.log for outcome in evidence.outcomes).steps
    return Fault("rounds", f"takes {steps} steps, the budget is {budget.rounds}") if steps > budget.rounds else None


def _calls_fault(evidence: Evidence, calls: tuple[tuple[str, str, int], ...]) -> Fault | None:
    orders = []
    for rank, outcome in enumerate(evidence.outcomes):
        made = [(event.op, event.axis, event.bytes_sent) for event in outcome.events]
        if Counter(made) != Counter(calls):
            return Fault("calls", f"rank {rank} called {_listed(made)}; the budget is {_listed(list(calls))}")
        orders.append([call[:2] for call in made])
    if any(order != orders[0] for order in orders):
        return Fault("order", "the ranks do not make their calls in the same order")
    return None


def _listed(calls: list[tuple[str, str, int]]) -> str:
    return ", ".join(f"{op} on {axis} ({count} bytes)" for op, axis, count in calls) or "nothing"
