"""From ledger events to the rounds that are drawn: data only."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, Union

if TYPE_CHECKING:
    from tpcourse.ledger import Event, Log

Logs = Union["Log", "Iterable[Log]"]
Calls = dict[int, "Event"]  # rank -> its call: the calls that belong to one message or one collective
Road = tuple[tuple[int, ...], int, int | None, int | None]  # group, copy, src, dst (or seq, None)
Node = tuple[int, str]  # number of the transfer; "send", "recv" or "all" for a collective
Needs = dict[Node, list[tuple[Node, int]]]  # node -> (node that must come before, how many rounds earlier)


class Message(NamedTuple):
    """Elements first .. first + num - 1 of src's array travel to dst, into its array from lands on."""

    step: int
    src: int
    dst: int
    first: int
    num: int
    bytes: int
    lands: int | None  # None: no rank received it
    alone: bool = False  # set by `placed` where no rank received it


class Member(NamedTuple):
    """What one rank gives to a collective."""

    rank: int
    op: str
    num: int
    bytes: int


class Band(NamedTuple):
    """One of torch's own collectives: its messages are not visible."""

    step: int
    axis: str
    group: tuple[int, ...]
    members: tuple[Member, ...]


def events_of(log: Logs) -> list["Event"]:
    """Events of one log or of a list of logs (one per rank). Raises ValueError if there are none."""
    logs = [log] if hasattr(log, "events") else list(log)
    events = [event for one in logs for event in one.events]
    if not events:
        text = f"{len(logs)} logs hold" if len(logs) > 1 else "the log holds"
        raise ValueError(f"{text} 0 events: put the calls inside `with ledger() as log:` and run that on every rank")
    return events


def steps(log: Logs) -> list[Message]:
    """Messages of the run in rounds, as `Log.steps` counts them: in one round a rank sends one and receives one.

    The k-th send of a (group, src, dst) belongs to its k-th receive. A rank sends one after the other, and a send
    leaves after the receives that were waited for before it began. So a ring takes p - 1 rounds, a tree log2(p).
    Raises: ValueError for a log without events.
    """
    return [_message(step, calls) for step, calls in _scheduled(events_of(log)) if _sender(calls)]


def bands(log: Logs) -> list[Band]:
    """Torch's own collectives of the run, in the same rounds as `steps`."""
    found = []
    for step, calls in _scheduled(events_of(log)):
        if any(event.op not in ("send", "recv") for event in calls.values()):
            first = next(iter(calls.values()))
            members = (Member(r, e.op, e.numel, e.bytes_sent) for r, e in sorted(calls.items()))
            found.append(Band(step, first.label, first.group, tuple(members)))
    return found


def unmatched(log: Logs) -> tuple[int, int]:
    """How many sends no rank received, and how many receives no rank sent for."""
    calls = _transfers(events_of(log))
    alone = [next(iter(call.values())).op for call in calls if len(call) == 1]
    return alone.count("send"), alone.count("recv")


def placed(messages: list[Message]) -> list[Message]:
    """Messages with `lands` where they are drawn.

    Trap: the ledger knows offsets, not arrays. A receive at offset 0 may go into a buffer of its own (a sum is added
    from there), so if every message lands at 0 or where it came from, it is drawn where it came from.
    """
    moved = any(m.lands not in (None, 0, m.first) for m in messages)
    return [m if moved and m.lands is not None else m._replace(lands=m.first, alone=m.lands is None) for m in messages]


def _sender(calls: Calls) -> "Event | None":
    return next((event for event in calls.values() if event.op == "send"), None)


def _message(step: int, calls: Calls) -> Message:
    send = _sender(calls)
    assert send is not None and send.peer is not None
    arrival = calls.get(send.peer)
    lands = arrival.offset if arrival else None
    return Message(step, send.rank, send.peer, send.offset, send.numel, send.bytes_sent, lands)


def _transfers(events: list["Event"]) -> list[Calls]:
    sends: dict[Road, list[Event]] = defaultdict(list)
    receives: dict[Road, list[Event]] = defaultdict(list)
    collectives: dict[Road, Calls] = defaultdict(dict)
    for e in events:
        if e.op == "send":
            sends[e.group, e.copy, e.rank, e.peer].append(e)
        elif e.op == "recv":
            receives[e.group, e.copy, e.peer, e.rank].append(e)
        else:
            collectives[e.group, e.copy, e.seq, None][e.rank] = e
    pairs = [pair for road in sends | receives for pair in zip_longest(sends[road], receives[road])]
    return [*collectives.values(), *({e.rank: e for e in pair if e} for pair in pairs)]


def _scheduled(events: list["Event"]) -> list[tuple[int, Calls]]:
    """Transfers with their rounds; a message is drawn in the round in which it is received."""
    transfers = _transfers(events)
    needs: Needs = {}
    by_rank: dict[int, list[tuple[Event, Node]]] = defaultdict(list)
    for number, calls in enumerate(transfers):
        for rank, event in calls.items():
            by_rank[rank].append((event, (number, _kind(event))))
        needs[number, "recv"] = [((number, "send"), 0)] * (_sender(calls) is not None)
    for own in by_rank.values():
        for node, others in _before(sorted(own, key=lambda call: call[0].begin_s)).items():
            needs[node] = needs.get(node, []) + others
    begin = [min(event.begin_s for event in calls.values()) for calls in transfers]
    rounds = _levels(needs, begin)
    last = [max(rounds.get((t, kind), 0) for kind in ("send", "recv", "all")) for t in range(len(transfers))]
    order = sorted(range(len(transfers)), key=lambda t: (last[t], next(iter(transfers[t]))))
    return [(last[t], transfers[t]) for t in order]


def _kind(event: "Event") -> str:
    return event.op if event.op in ("send", "recv") else "all"


def _before(calls: list[tuple["Event", Node]]) -> Needs:
    """For the calls of one rank in order: node -> nodes that come before it, one round earlier."""
    needs: Needs = defaultdict(list)
    past: dict[str, list[tuple[Event, Node]]] = defaultdict(list)
    for event, node in calls:
        for kind, earlier in past.items():
            if kind == node[1] or "all" in (kind, node[1]):
                needs[node].append((earlier[-1][1], 1))
            elif node[1] == "send":
                needs[node] += [(other, 1) for e, other in earlier if _done(e) <= event.begin_s][-1:]
        past[node[1]].append((event, node))
    return needs


def _done(event: "Event") -> float:
    times = [time for time in (event.waited_s, event.end_s) if time is not None]
    return times[0] if times else float("inf")


def _levels(needs: Needs, begin: list[float]) -> dict[Node, int]:
    """Longest path to each node. A circle (ranks that wait for each other) is cut at the call that began first."""
    level: dict[Node, int] = {}
    left = sorted({*needs, *(other for others in needs.values() for other, _ in others)}, key=lambda n: begin[n[0]])
    while left:
        ready = [n for n in left if all(other in level for other, _ in needs.get(n, []))] or left[:1]
        for node in ready:
            level[node] = max((level[o] + more for o, more in needs.get(node, []) if o in level), default=0)
        left = [node for node in left if node not in level]
    return level
