"""Calls that returned and have not ended: torch's works, kept until they complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from tpcourse.ledger.ended import Ended

if TYPE_CHECKING:
    from tpcourse.ledger.event import Event
    from tpcourse.ledger.record import Call

MOST = 512      # works kept; they hold tensors
SETTLE_S = 0.1  # between a work's future and the work itself
YOUNG_S = 0.2   # between the begin of a call and its return


class Handle:
    """What tells the end of one or more calls: torch's Work, or a mark on the device's stream."""

    __slots__ = ("calls", "is_device", "marker", "work")

    def __init__(self, work: Any, marker: Any, calls: list[Call]) -> None:
        self.work, self.marker, self.calls = work, marker, calls
        self.is_device = any(call.is_device for call in calls)

    def is_done(self) -> bool:
        """Whether the calls have ended, as far as can be seen without waiting."""
        return bool(self.marker.query() if self.work is None else self.work.is_completed())

    def is_young(self) -> bool:
        """Whether the thread that made the call may not have its work yet. To let go of it would be too early: the
        thread would get another object for the same work, and its wait would be for nothing that is known.
        """
        call = self.calls[0]
        return call.thread != get_ident() and monotonic() - call.event.begin_s < YOUNG_S

    def holds(self, storage: int) -> bool:
        """Whether a tensor that the calls write has this storage."""
        return any(own._cdata == storage for own in self.storages())

    def storages(self) -> list[Any]:
        """Those that the calls write."""
        return [tensor.untyped_storage() for call in self.calls for tensor in call.outputs]

    def source(self) -> int | None:
        """The group rank whose message a receive from any rank took."""
        try:
            return int(self.work._source_rank())
        except (AttributeError, RuntimeError, TypeError):
            return None


class Pending:
    """The handles of unfinished calls, oldest first."""

    def __init__(self, finish: Callable[[Call, Handle], None]) -> None:
        self._finish = finish
        self._handles: dict[int, Handle] = {}
        self._ended_works, self._ended_storages = Ended(), Ended()      # which nobody has waited for yet
        self._young: deque[Handle] = deque()    # ended, and kept for a thread that may not have their work yet
        self.captures = 0       # CUDA graphs being recorded: a question to the device would break them

    def add(self, handle: Handle) -> None:
        """Follow a handle; beyond 512 the oldest is given up, and its end stays unknown."""
        while len(self._handles) >= MOST:
            self._handles.pop(self._oldest() or 0, None)
        self._handles[_key(handle)] = handle

    def _oldest(self) -> int | None:
        """The oldest key; another thread may add or take one while we look."""
        while True:
            try:
                return next(iter(self._handles), None)
            except RuntimeError:
                continue

    def of_work(self, work: Any) -> Handle | None:
        """The handle of torch's Work, if it is still followed."""
        handle = self._handles.get(id(work))
        return handle if handle is not None and handle.work is work else None

    def of_tensor(self, tensor: Any) -> Handle | None:
        """The handle of the latest call that writes into a tensor."""
        if not self._handles:
            return None
        storage = tensor.untyped_storage()._cdata
        return next((handle for handle in reversed(self.handles()) if handle.holds(storage)), None)

    def ended(self, work: Any = None, tensor: Any = None) -> list[Event]:
        """The events of calls that ended unseen, of a work or with a tensor, for which a wait comes now; once."""
        if work is not None:
            return self._ended_works.take(id(work))
        return self._ended_storages.take(tensor.untyped_storage()._cdata) if self._ended_storages else []

    def handles(self) -> list[Handle]:
        """The handles now, oldest first."""
        return list(self._handles.values())

    def end(self, handle: Handle) -> None:
        """The calls of a handle have ended."""
        if self._handles.pop(_key(handle), None) is not None:
            for call in handle.calls:
                self._finish(call, handle)

    def sweep(self) -> None:
        """Look at the two oldest handles, so that a long run keeps none that ended; put them last if not."""
        self._let_go()
        for _ in range(min(2, len(self._handles))):
            key = self._oldest()
            handle = None if key is None else self._handles.pop(key, None)
            if key is not None and handle is not None:
                self._handles[key] = handle
                self.look(handle)

    def poll(self) -> None:
        """Look at every handle."""
        self._let_go()
        for handle in self.handles():
            self.look(handle)

    def settle(self) -> None:
        """Look once more at calls that C++ code waited for: gloo wakes the waiter first, and says it ended then."""
        end = monotonic() + SETTLE_S
        while any(h.calls[0].waits_unseen and not h.is_device for h in self.handles()) and monotonic() < end:
            sleep(SETTLE_S / 100)
            self.poll()

    def _let_go(self) -> None:
        """Keep no work longer than its caller may need."""
        with suppress(IndexError):      # another thread may take one while we look
            while self._young and not self._young[0].is_young():
                self._young.popleft()

    def look(self, handle: Handle) -> None:
        """Look at one handle."""
        if handle.is_device and self.captures:
            return
        try:
            if handle.is_done():
                self._remember(handle)
                self.end(handle)
        except Exception:       # the work failed or its group was aborted: no end will come
            self._handles.pop(_key(handle), None)

    def _remember(self, handle: Handle) -> None:
        """Its wait may come later: a work, or a tensor of a functional call, that somebody still holds or soon will."""
        events = [call.event for call in handle.calls if call.event.is_async and call.event.wait_begin_s is None]
        if not events:
            return
        if handle.is_young():
            self._young.append(handle)
        if handle.work is not None:
            self._ended_works.add(id(handle.work), handle.work, events)
        for storage in handle.storages():
            self._ended_storages.add(storage._cdata, storage, events)

    def clear(self) -> None:
        """Give up all handles."""
        for kept in (self._handles, self._ended_works, self._ended_storages, self._young):
            kept.clear()


def _key(handle: Handle) -> int:
    return id(handle.marker if handle.work is None else handle.work)
