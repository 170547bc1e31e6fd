"""Runs one cell or call on ranks and watches it: the loop that never hangs."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

POLL_S = 0.2  # how long a rank holds back its answer while it is busy
SILENT_S = 2.0  # no answer for so long: the rank holds the interpreter
AFTER_FAILURE_S = 1.0  # patience once a rank has raised or died


@dataclass(frozen=True)
class Each:
    """An argument with a value of its own for each rank (None where there is none): no rank gets another's."""

    values: dict[int, Any]


def own(rank: int, arguments: Any) -> Any:
    """The arguments of a call as one rank gets them."""
    if isinstance(arguments, Each):
        return arguments.values.get(rank)
    return tuple(own(rank, one) for one in arguments) if type(arguments) is tuple else arguments


class OutOfTime(KeyboardInterrupt):
    """A run's time is up: what the interrupt button does, without a finger."""


class Run:
    """One cell on some ranks: their latest states, and since when nothing moved."""

    def __init__(self, cluster: Any, targets: list[int], patience: float, limit_s: float = math.inf) -> None:
        self.cluster, self.targets, self.patience = cluster, targets, patience
        self.end_s, self.is_over = time.monotonic() + limit_s, False
        self.calls: dict[int, Any] = {}
        self.replies: dict[int, dict[str, Any]] = {}
        self.asked: dict[int, float] = {}
        self.died: dict[int, str] = {}
        self.moved = time.monotonic()
        self.last: dict[int, tuple] = {}
        self.cpu: dict[int, tuple[float, float]] = {}
        self.lost: dict[int, BaseException] = {}

    def start(self, name: str, *args: Any) -> None:
        with uninterrupted():
            for rank in self.targets:
                self._ask(rank, name, *own(rank, args), POLL_S)

    def _ask(self, rank: int, name: str, *args: Any) -> None:
        self.calls[rank] = self.cluster.call(rank, name, *args)
        self.asked[rank] = time.monotonic()

    def step(self) -> bool:
        """Collect answers, ask those who are busy again; True when every rank is done or dead."""
        with uninterrupted():
            return self._step()

    def _step(self) -> bool:
        end = time.monotonic() + POLL_S + 0.1
        for rank, result in list(self.calls.items()):
            result.wait(max(0.0, end - time.monotonic()))
            if result.ready():
                del self.calls[rank]
                self._take(rank, result)
        for rank, how in self.cluster.dead().items():
            if rank not in self.died:
                self.died[rank] = how
                self.moved = time.monotonic()
            self.calls.pop(rank, None)
        self._notice_progress()
        busy = [rank for rank in self.targets if not self.finished(rank)]
        for rank in busy:
            if rank not in self.calls:
                self._ask(rank, "wait", POLL_S)
        return not busy

    def _take(self, rank: int, result: Any) -> None:
        try:
            self.replies[rank] = self.cluster.collect(result)
        except Exception as error:
            self.lost[rank] = error
            self.replies[rank] = {"done": True, "items": [], "value": None, "error": _lost(error), "state": {}}

    def finished(self, rank: int) -> bool:
        return rank in self.died or bool(self.replies.get(rank, {}).get("done"))

    def _notice_progress(self) -> None:
        """Reset the clock when a call began or ended, a rank finished, or one computes."""
        now = time.monotonic()
        for rank, reply in self.replies.items():
            state = reply["state"]
            mark = (reply["done"], state.get("progress"), state.get("state"))
            computes = state.get("state") == "running" and self._used_cpu(rank, state["cpu_s"], now)
            if mark != self.last.get(rank) or computes:
                self.last[rank], self.moved = mark, now

    def _used_cpu(self, rank: int, cpu_s: float, now: float) -> bool:
        """Whether a running rank used the processor lately."""
        then, before = self.cpu.setdefault(rank, (now, cpu_s))
        if now - then < min(1.0, self.patience / 3):
            return False
        self.cpu[rank] = (now, cpu_s)
        return cpu_s - before > 0.05 * (now - then)

    def is_silent(self, rank: int) -> bool:
        return rank in self.calls and time.monotonic() - self.asked[rank] > SILENT_S

    def kind(self, rank: int) -> str:
        """`running`, `waiting`, `done`, `raised`, `dead` or `silent`."""
        if rank in self.died:
            return "dead"
        if self.is_silent(rank):
            return "silent"
        return self.replies.get(rank, {}).get("state", {}).get("state", "running" if rank in self.calls else "done")

    def is_stuck(self) -> bool:
        """Nothing moved for `patience` seconds and somebody waits; less patience once a rank raised or died."""
        waiting = any(self.kind(rank) == "waiting" for rank in self.targets)
        return waiting and time.monotonic() - self.moved > self.limit()

    def limit(self) -> float:
        """Seconds without progress that count as stuck: few, once a rank has raised or died."""
        failed = any(self.kind(rank) in ("raised", "dead") for rank in self.targets)
        return min(self.patience, AFTER_FAILURE_S) if failed else self.patience

    def watch(self, each_step: Callable[[Run], None]) -> bool:
        """Go on until all is done (True) or stuck (False).

        Raises: OutOfTime if there was a limit, and it is reached.
        """
        while not self.step():
            if self.is_stuck() or (self.died and time.monotonic() - self.moved > AFTER_FAILURE_S):
                return False
            if time.monotonic() > self.end_s:
                self.is_over = True
                raise OutOfTime
            each_step(self)
        return not self.died


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interrupt back until the block ends: in the middle of ipyparallel's locks it would break the client."""
    held: list[Any] = []
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGINT, lambda *args: held.append(args)) or signal.SIG_DFL
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if held and callable(usual):
        usual(*held[0])


def _lost(error: BaseException) -> dict[str, Any]:
    """The error of a rank that could not report its own."""
    name, message = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", str(error))
    nothing: dict[str, Any] = {"frames": [], "inside": None, "collective": False, "fatal": False, "place": None}
    return {"name": name, "message": message, **nothing}
