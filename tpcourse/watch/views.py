"""The ranks' states and calls, put in order so that the questions of a diagnosis are one line each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpcourse.watch.words import PAIR_OPS

Channel = tuple[Any, ...]
RING = 64  # the shortest history that may have lost its beginning


def channel(event: Any) -> Channel:
    """What an event counts in: its group; for send and receive its group, source and destination."""
    if event.op == "send":
        return (event.label, event.group, event.rank, event.peer)
    if event.op == "recv":
        return (event.label, event.group, event.peer, event.rank)
    return (event.label, event.group)


@dataclass(frozen=True)
class View:
    """One rank: what it does, where, and its recent calls in begin order."""

    rank: int
    state: str
    line: str | None
    events: Sequence[Any]
    error: str | None = None
    exit: str | None = None
    is_idle: bool = False  # done because the cell did not run here
    host: str | None = None  # where it runs, if the ranks are on several hosts

    @property
    def pending(self) -> list[Any]:
        """Calls that have not finished."""
        return [event for event in self.events if event.end_s is None]

    @property
    def last(self) -> Any | None:
        """The call it finished last."""
        return next((event for event in reversed(self.events) if event.end_s is not None), None)


def latest_groups(events: list[Any]) -> list[Any]:
    """The calls since the groups were last made: where a group's numbers start again, what came before is old."""
    start, seen = 0, dict[Channel, int]()
    for place, event in enumerate(events):
        if event.op in PAIR_OPS:
            continue
        if event.seq <= seen.get(channel(event), 0):
            start, seen = place, {}
        seen[channel(event)] = event.seq
    return events[start:]


class Board:
    """All calls by channel, rank and number."""

    def __init__(self, events_by_rank: Mapping[int, Iterable[Any]]) -> None:
        self.calls: dict[Channel, dict[int, dict[int, Any]]] = {}
        self.truncated = set()
        self.order: dict[int, dict[tuple[Channel, int], int]] = {}
        for rank, events in events_by_rank.items():
            kept = latest_groups(list(events))
            if len(kept) >= RING:
                self.truncated.add(rank)
            places = self.order[rank] = {}
            for place, event in enumerate(kept):
                places[channel(event), event.seq] = place
                self.calls.setdefault(channel(event), {}).setdefault(rank, {})[event.seq] = event

    def count(self, where: Channel, rank: int) -> int:
        """How many calls a rank has begun on a channel."""
        return max(self.calls.get(where, {}).get(rank, {}), default=0)

    def at(self, where: Channel, seq: int) -> dict[int, Any]:
        """The ranks' calls with one number on one channel."""
        return {rank: calls[seq] for rank, calls in sorted(self.calls.get(where, {}).items()) if seq in calls}

    def precedes(self, first: Any, second: Any) -> bool:
        """Whether some rank made the first call before the second."""
        a, b = (channel(first), first.seq), (channel(second), second.seq)
        return any(a in places and b in places and places[a] < places[b] for places in self.order.values())


class World:
    """Every rank's view, the board of calls, and who waits for whom."""

    def __init__(self, views: Sequence[View]) -> None:
        self.views = {view.rank: view for view in views}
        self.board = Board({view.rank: view.events for view in views})

    def others(self, event: Any) -> list[int]:
        """The ranks of a call beside the one that made it."""
        one = event.op in PAIR_OPS and event.peer is not None
        others = [event.peer] if one else [rank for rank in event.group if rank != event.rank]
        return [rank for rank in others if rank in self.views]

    def missing(self, event: Any) -> list[int]:
        """Ranks of a call that have not joined it, or ended inside it."""
        if event.op in PAIR_OPS and event.peer is None:
            return self.others(event)
        return [rank for rank in self.others(event) if not self._joined(rank, event)]

    def _joined(self, rank: int, event: Any) -> bool:
        begun = self.board.count(channel(event), rank)
        if begun < event.seq:
            return False
        its = self.board.calls[channel(event)][rank].get(event.seq)
        ended = self.views[rank].state in ("dead", "raised")
        return not (ended and its is not None and its.end_s is None)

    def waits(self, rank: int) -> list[Any]:
        """The unfinished calls that hold a rank up, the first in begin order first."""
        view = self.views[rank]
        if view.state not in ("waiting", "running"):
            return []
        blocking = [event for event in view.pending if not event.is_async]
        if blocking:
            places = {channel(event) for event in blocking}
            blocking = [event for event in view.pending if channel(event) in places]
        elif view.state == "waiting":
            blocking = view.pending
        stuck = [event for event in blocking if self.missing(event)]
        return stuck or blocking[-1:]

    def waiting(self) -> dict[int, list[Any]]:
        """Each waiting rank with the calls that hold it up."""
        found = {rank: self.waits(rank) for rank in sorted(self.views)}
        return {rank: events for rank, events in found.items() if events}

    def blockers(self, rank: int) -> list[int]:
        """The ranks that a rank waits for."""
        return sorted({other for event in self.waits(rank) for other in self.missing(event)})
