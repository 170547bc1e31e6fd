"""What a `with ledger()` block caught, and the same of several ranks together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tpcourse.ledger.event import Event
from tpcourse.ledger.steps import count_steps

COLUMNS = ("seq", "op", "axis", "shape", "dtype", "bytes", "peer", "line")


class Log:
    """The calls of one rank, or of several after `merge`, in the order in which they began.

    Numbers of a merged log (`bytes_sent`, `num_calls`, `count`) are those of the rank with the most.
    """

    def __init__(self, events: Iterable[Event] = (), poll: Callable[[], None] | None = None) -> None:
        self._events = list(events)
        self._poll = poll

    @property
    def events(self) -> list[Event]:
        """The calls; asking looks once more whether the unfinished ones have ended."""
        if self._poll is not None:
            self._poll()
        return self._events

    @property
    def ranks(self) -> list[int]:
        """The ranks that made at least one call."""
        return sorted({event.rank for event in self._events})

    @property
    def bytes_sent(self) -> int:
        """Bytes that a rank sends (largest rank)."""
        return self._largest(lambda event: event.bytes_sent)

    @property
    def total_bytes_sent(self) -> int:
        """Bytes that all ranks of this log send together."""
        return sum(event.bytes_sent for event in self._events)

    @property
    def num_calls(self) -> int:
        """Calls that a rank made (largest rank)."""
        return self._largest(lambda _: 1)

    @property
    def steps(self) -> int:
        """Rounds of messages: the longest chain of sends and receives that had to follow each other."""
        return count_steps(self._events)

    def count(self, op: str, axis: str | None = None) -> int:
        """Calls of one operation, on one axis if named (largest rank)."""
        return self._largest(lambda event: event.op == op and axis in (None, event.axis))

    def rank(self, r: int) -> Log:
        """The calls of one rank."""
        return Log([event for event in self._events if event.rank == r], self._poll)

    def table(self, max_rows: int = 40) -> str:
        """The calls as text without times: two equal programs give two equal tables."""
        columns = ("rank", *COLUMNS) if len(self.ranks) > 1 else COLUMNS
        rows = [columns] + [_cells(event)[-len(columns):] for event in self._shown(max_rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        hidden = len(self._events) + 1 - len(rows)
        if hidden > 0:
            lines.insert(1 + max_rows // 2, f"... {hidden} more calls, not shown ...")
        return "\n".join(lines)

    def _shown(self, max_rows: int) -> list[Event]:
        if len(self._events) <= max_rows:
            return self._events
        tail = max_rows - max_rows // 2
        return self._events[: max_rows // 2] + self._events[len(self._events) - tail:]

    def _largest(self, value: Callable[[Event], int]) -> int:
        totals: dict[int, int] = {}
        for event in self._events:
            totals[event.rank] = totals.get(event.rank, 0) + value(event)
        return max(totals.values(), default=0)

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        who = "" if len(self.ranks) < 2 else f" of {len(self.ranks)} ranks"
        return f"Log{who}: {len(self)} calls, {self.total_bytes_sent} bytes sent"

    def __str__(self) -> str:
        return self.table()

    def __getstate__(self) -> dict[str, Any]:
        return {"_events": list(self.events), "_poll": None}


def merge(logs: Log | Iterable[Log]) -> Log:
    """One log of all ranks' calls, ordered by rank, then by begin."""
    logs = [logs] if isinstance(logs, Log) else list(logs)
    return Log(sorted((event for log in logs for event in log.events), key=lambda event: event.rank))


def _cells(event: Event) -> tuple[str, ...]:
    shape = "-" if event.op == "barrier" else str(list(event.shape))
    return (str(event.rank), str(event.seq), event.op, event.label, shape, event.dtype or "-",
            str(event.bytes_sent), event.peer_text, event.line)
