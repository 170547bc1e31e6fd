"""Finished calls that did not agree, which torch does not notice."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tpcourse.watch.mismatch import EQUAL_SIZES, Calls, compare_details, compare_operations, compare_pair
from tpcourse.watch.order import explain_order
from tpcourse.watch.report import Fault, Report, report
from tpcourse.watch.views import Board, Channel
from tpcourse.watch.words import call_text, ranks_text, verb, where

Events = Sequence[Iterable[Any]] | Mapping[int, Iterable[Any]]


def disagreements(events_by_rank: Events) -> Report | None:
    """Compare the finished calls of all ranks, group by group and number by number; None if they agree.

    Trap: call it when the cell has ended on every rank. Unfinished calls and calls that a shortened history
    no longer holds are left out, so what it reports is always the case.
    """
    pairs = events_by_rank.items() if isinstance(events_by_rank, Mapping) else enumerate(events_by_rank)
    board = Board({rank: events for rank, events in pairs if events is not None})
    fault = find_disagreement(board, ended=True)
    return None if fault is None else report(fault)


def find_disagreement(board: Board, ended: bool = False) -> Fault | None:
    """The first mismatch among finished calls; with `ended` also different numbers of calls."""
    found: list[tuple[Any, Fault]] = []
    for place, by_rank in board.calls.items():
        check = _collectives if len(place) == 2 else _pair
        hit = check(board, place) or (_counts(board, place, by_rank) if ended else None)
        if hit is not None:
            found.append(hit)
    if not found:
        return None
    counts = [sum(board.precedes(other[0], event) for other in found) for event, _ in found]
    return found[counts.index(min(counts))][1]


def _finished(calls: Mapping[int, Any]) -> dict[int, Any]:
    return {key: event for key, event in calls.items() if event.end_s is not None}


def _collectives(board: Board, place: Channel) -> tuple[Any, Fault] | None:
    """The first number under which a group's finished calls differ."""
    by_rank = board.calls[place]
    for seq in sorted({seq for calls in by_rank.values() for seq in calls}):
        calls = _finished(board.at(place, seq))
        if len(calls) < 2:
            continue
        fault = compare_operations(calls)
        fault = (fault and (explain_order(board, place, seq) or fault)) or compare_details(calls, EQUAL_SIZES)
        if fault is not None:
            return next(iter(calls.values())), fault
    return None


def _pair(board: Board, place: Channel) -> tuple[Any, Fault] | None:
    """The first send that differs from its receive.

    Trap: tags may match calls in another order, so nothing is said where both ends hold the same calls.
    """
    sent, received = (_finished(board.calls[place].get(rank, {})) for rank in place[2:])
    both = sorted(set(sent) & set(received))
    kinds = [Counter((calls[seq].dtype, calls[seq].numel) for seq in both) for calls in (sent, received)]
    if kinds[0] == kinds[1]:
        return None
    for seq in both:
        fault = compare_pair(sent[seq], received[seq])
        if fault is not None:
            return sent[seq], fault
    return None


def _counts(board: Board, place: Channel, by_rank: Mapping[int, Calls]) -> tuple[Any, Fault] | None:
    """Ranks that made fewer calls on a channel than a rank that finished more."""
    members = place[1] if len(place) == 2 else place[2:]
    whole = board.order.keys() - board.truncated
    known = [rank for rank in members if rank in by_rank or rank in whole]
    counts = {rank: board.count(place, rank) for rank in known}
    short = [rank for rank in known if counts[rank] < max(counts.values())]
    if not short or any(rank is None for rank in members):
        return None
    seq = min(counts[rank] for rank in short) + 1
    made = _finished(board.at(place, seq))
    short = [rank for rank in short if counts[rank] == seq - 1]
    sure = all(min(calls) == 1 for calls in by_rank.values()) or all(rank in by_rank for rank in short)
    if not made or not sure:
        return None
    event = next(iter(made.values()))
    return event, _count_fault(event, short, list(made), counts)


def _count_fault(event: Any, short: list[int], made: list[int], counts: Mapping[int, int]) -> Fault:
    """Words for different numbers of calls."""
    name, done = ranks_text(short), counts[short[0]]
    if event.op in ("send", "recv"):
        kind = "send without receive" if event.op == "send" else "receive without send"
        act = "received" if event.op == "send" else "sent"
        sentence = f"rank {event.rank} made {call_text(event)}{where(event)}, but {name} never {act} it."
        return Fault(kind, sentence, (event.rank, *short))
    sentence = (
        f"{name} never called {call_text(event)}{where(event)}: {verb(short, 'it', 'they')} made {done} "
        f"{'call' if done == 1 else 'calls'} on {event.label}, "
        f"{ranks_text(made)} made {max(counts[r] for r in made)}."
    )
    return Fault("skipped call", sentence, tuple(short))
