"""Rounds of messages: how long the longest chain of sends and receives of a log is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tpcourse.ledger.event import Event

Message = tuple[object, ...]


def count_steps(events: Iterable[Event]) -> int:
    """The rounds that an algorithm needs, if in one round a rank sends one message and receives one.

    Each message takes one round. A rank sends its messages one after the other, and a send leaves after the
    receives that were waited for before it began. The ring's all-gather has p - 1 rounds, a tree's broadcast
    log2 p. Collectives take none. Without the sender's log a message counts as sent at once.
    """
    ranks: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.is_point_to_point:
            ranks[event.rank].append(event)
    arrival: dict[Message, int] = {}
    ends = [0]
    for _ in range(sum(map(len, ranks.values())) + 1):      # each pass settles at least one more message
        before = dict(arrival)
        ends = [_replay(calls, arrival) for calls in ranks.values()]
        if arrival == before:
            break
    return max(ends, default=0)


def _replay(calls: list[Event], arrival: dict[Message, int]) -> int:
    """Play one rank's calls once with the arrivals known so far; note when its own messages arrive."""
    sent, received, ready = 0, 0, 0     # rounds: the last send's, the last receive's, what a send relies on
    open_: list[tuple[float, int]] = []     # (time a wait returned, round) of receives not yet in `ready`
    for event in calls:
        if event.op == "send":
            ready = max([ready, *(step for time, step in open_ if time <= event.begin_s)])
            open_ = [(time, step) for time, step in open_ if time > event.begin_s]
            sent = max(sent, ready) + 1
            arrival[_message(event)] = sent
        else:
            received = max(received + 1, arrival.get(_message(event), 1))
            waited = event.end_s if event.waited_s is None else event.waited_s
            if waited is not None:
                open_.append((waited, received))
    return max(sent, received)


def _message(event: Event) -> Message:
    ends = (event.rank, event.peer) if event.op == "send" else (event.peer, event.rank)
    return (event.axis, event.group, event.copy, *ends, event.seq)
