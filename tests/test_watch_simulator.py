"""Ranks that run lists of calls with blocking semantics, so that tests of reports need no processes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from tpcourse.ledger.event import Event

SIZES = {"float32": 4, "int32": 4, "float64": 8, "": 0}


@dataclass(frozen=True)
class Call:
    """One step of a rank's programme; op may also be compute, raise, die, hold or elsewhere."""

    op: str
    line: int = 1
    axis: str = "world"
    group: tuple[int, ...] | None = None
    peer: int | None = None
    shape: tuple[int, ...] = (4,)
    dtype: str = "float32"
    reduction: str | None = None
    tag: int = 0
    more: dict[str, Any] = field(default_factory=dict, hash=False)
    text: str = ""


STATES = {"compute": "running", "raise": "raised", "die": "dead", "hold": "silent", "elsewhere": "waiting"}


class Machine:
    """Runs the programmes until nothing moves; `strict` is a backend on which any difference blocks."""

    def __init__(self, programmes: list[list[Call]], strict: bool = True, end: str | None = "line 99") -> None:
        self.programmes, self.strict, self.end = programmes, strict, end
        self.ranks = range(len(programmes))
        self.events: list[list[Event]] = [[] for _ in programmes]
        self.places = [0 for _ in programmes]
        self.counts: dict[Any, int] = defaultdict(int)
        self.posted: dict[Any, dict[int, Event]] = defaultdict(dict)
        self.clock = 0.0
        moved = True
        while moved:
            moved = sum(self._step(rank) for rank in self.ranks) > 0

    def _step(self, rank: int) -> bool:
        """Post the next call if the last one ended; end it if all that it needs is there."""
        if self.places[rank] == len(self.programmes[rank]):
            return False
        call = self.programmes[rank][self.places[rank]]
        if call.op in STATES:
            return False
        last = self.events[rank][-1] if self.events[rank] else None
        waiting = last is not None and last.end_s is None and not last.is_async
        if not waiting:
            self._post(rank, call)
        if call.more.get("is_async") or self._is_met(self.events[rank][-1]):
            self.clock += 1
            if not call.more.get("is_async"):
                self.events[rank][-1].end_s = self.clock
            self.places[rank] += 1
            return True
        return not waiting

    def _key(self, event: Event) -> tuple[Any, ...]:
        if event.op in ("send", "recv"):
            ends = (event.rank, event.peer) if event.op == "send" else (event.peer, event.rank)
            return (event.axis, event.group, *ends)
        return (event.axis, event.group)

    def _post(self, rank: int, call: Call) -> None:
        group = call.group or tuple(self.ranks)
        numel = 1
        for size in call.shape:
            numel *= size
        sent = numel * SIZES[call.dtype]
        values: dict[str, Any] = {"is_async": False, "function": "<module>", "splits": None, **call.more}
        event = Event(
            rank=rank, seq=0, op=call.op, axis=call.axis, group=group, peer=call.peer, shape=call.shape,
            dtype=call.dtype, numel=numel, offset=0, reduction=call.reduction, bytes_sent=sent, bytes_received=sent,
            begin_s=self.clock, end_s=None, line=f"line {call.line}", tag=call.tag, **values,
        )  # fmt: skip
        self.counts[rank, self._key(event)] += 1
        event.seq = self.counts[rank, self._key(event)]
        self.events[rank].append(event)
        self.posted[self._key(event), event.seq][rank] = event

    def _is_met(self, event: Event) -> bool:
        calls = self.posted[self._key(event), event.seq]
        needed = {event.rank, event.peer} if event.op in ("send", "recv") else set(event.group)
        if set(calls) != needed:
            return False
        alike = {self._must_agree(call) for call in calls.values()}
        return len(alike) == 1

    def _must_agree(self, event: Event) -> tuple[Any, ...]:
        if event.op in ("send", "recv"):
            return (event.numel, event.dtype, event.tag) if self.strict else (event.numel * SIZES[event.dtype],)
        if self.strict:
            return (event.op, event.numel, event.dtype, event.reduction, event.peer, event.splits)
        return (event.op, event.numel * SIZES[event.dtype])

    def state(self, rank: int) -> dict[str, Any]:
        """What `diagnose` reads of one rank."""
        line, error, code = self.end, None, None
        kind = "done"
        if self.places[rank] < len(self.programmes[rank]):
            call = self.programmes[rank][self.places[rank]]
            kind, line = STATES.get(call.op, "waiting"), f"line {call.line}"
            error, code = (call.text or None) if kind == "raised" else None, call.text if kind == "dead" else None
        return {"rank": rank, "state": kind, "line": line, "events": self.events[rank], "error": error,
                "exit": code, "host": None, "seconds": None}  # fmt: skip

    def states(self) -> list[dict[str, Any]]:
        """What `diagnose` reads."""
        return [self.state(rank) for rank in self.ranks]

    @property
    def is_stuck(self) -> bool:
        """Whether some rank did not reach its end."""
        return any(state["state"] != "done" for state in self.states())


def same(ranks: int, *calls: Call, **others: list[Call]) -> list[list[Call]]:
    """The same programme on every rank, but for those given as r0=[...], r1=[...]."""
    return [others.get(f"r{rank}", list(calls)) for rank in range(ranks)]


def grid(call: Call, rank: int, tp: int = 2, ranks: int = 4) -> Call:
    """A call on this rank's group of a grid of dp x tp ranks."""
    row = rank // tp * tp
    groups = {"tp": tuple(range(row, row + tp)), "dp": tuple(range(rank % tp, ranks, tp))}
    return replace(call, group=groups.get(call.axis, tuple(range(ranks))))


def test_a_programme_without_a_fault_ends_on_every_rank() -> None:
    calls = [Call("all_reduce", reduction="sum"), Call("all_gather", 2), Call("barrier", 3)]
    assert not Machine(same(3, *calls)).is_stuck


def test_a_send_and_its_receive_meet_and_a_lone_send_waits() -> None:
    sent, received = Call("send", peer=1), Call("recv", peer=0)
    assert not Machine([[sent], [received]]).is_stuck
    assert Machine([[sent], []]).is_stuck


def test_a_group_waits_until_all_its_ranks_called() -> None:
    machine = Machine(same(3, Call("all_reduce"), r1=[]))
    assert [state["state"] for state in machine.states()] == ["waiting", "done", "waiting"]
