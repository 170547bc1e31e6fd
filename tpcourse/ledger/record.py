"""The recorder: turns each call into an Event, and follows it until it ends."""

from __future__ import annotations

import collections
import copy
import functools
import sys
import traceback
from collections.abc import Callable, Sequence
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any

from tpcourse.ledger.board import Board
from tpcourse.ledger.calls import Spec, Traits
from tpcourse.ledger.event import Event
from tpcourse.ledger.groups import Group, Groups
from tpcourse.ledger.log import Log
from tpcourse.ledger.pending import Handle, Pending
from tpcourse.ledger.place import Origin, Places

if TYPE_CHECKING:
    from tpcourse.ledger.waits import Listener

RING = 256              # events kept when no log is open
WAITING_TYPES = ("cuda", "xpu")


class Call:
    """One call between its begin and its end."""

    __slots__ = ("event", "group", "is_device", "number", "outputs", "stays_waited", "thread", "waits_unseen")

    def __init__(self, event: Event, group: Group, traits: Traits, is_cpp: bool) -> None:
        self.event, self.group = event, group
        self.outputs = traits.outputs
        self.is_device = traits.tensor is not None and traits.tensor.device.type in WAITING_TYPES
        self.waits_unseen = is_cpp or self.is_device        # by C++ code, or by the device's stream
        self.stays_waited = self.waits_unseen or not event.is_async
        self.thread = get_ident()
        self.number = 0


class Recorder:
    """Everything the ledger knows in one rank."""

    def __init__(self) -> None:
        self.groups, self.places = Groups(), Places()
        self.events: collections.deque[Event] = collections.deque(maxlen=RING)
        self.logs: tuple[Log, ...] = ()
        self.listeners: tuple[Listener, ...] = ()
        self.board: Board | None = None
        self.fault: str | None = None
        self.pending = Pending(self.finish)
        self.blocked: dict[int, Call] = {}      # thread -> the call it waits in
        self.coalescing: dict[int, list[Call]] = {}

    def begin(self, spec: Spec, args: Sequence[Any], boxed: Any, is_async: bool | None) -> Call | None:
        """Note that a call begins. A fault of the ledger never stops the call."""
        try:
            self.pending.sweep()
            group = self.groups.of(boxed)
            traits = spec.read(args, group)
            origin = self.places.origin(sys._getframe(1))
            if is_async is None:
                is_async = not origin.is_blocking
            event = _event(spec.op, group, traits, is_async, origin)
            self._count(event, group, traits)
            call = Call(event, group, traits, origin.is_cpp)
            self._keep(call)
            return call
        except Exception:
            self.note_fault()
            return None

    def note_fault(self) -> None:
        """Keep the first fault of the ledger itself, for `ledger_fault()` and for tests."""
        if self.fault is None:
            self.fault = traceback.format_exc()

    def _count(self, event: Event, group: Group, traits: Traits) -> None:
        """Give the call its number, and add it to its group's fingerprint."""
        if event.is_point_to_point:
            ends = (event.rank, event.peer) if event.op == "send" else (event.peer, event.rank)
            event.seq = group.next_message(*ends)
            if event.peer is not None:
                self._mark_message(event, ends)
        else:
            event.seq = group.next_collective()
            word = f"{event.op} {traits.agree} {event.dtype} {event.reduction} {event.peer}"
            self.groups.mark((event.axis, event.group, event.copy), word)

    def _mark_message(self, event: Event, ends: tuple[int | None, int | None]) -> None:
        key = (event.axis, event.group, event.copy, *ends, event.tag)
        self.groups.mark(key, f"{event.numel} {event.dtype}")

    def _keep(self, call: Call) -> None:
        event = call.event
        self.blocked[call.thread] = call
        self.events.append(event)
        for log in self.logs:
            log._events.append(event)
        if self.board is not None:
            call.number = self.board.write(event, is_waited=True)

    def returned(self, call: Call, work: Any, marker: Any) -> None:
        """Note that the operator returned: with a work to wait for, a mark on its stream, or done."""
        self.blocked.pop(call.thread, None)
        if self.board is not None and not call.stays_waited:
            self.board.waited(call.number, False)
        if work is None and call.thread in self.coalescing:
            self.coalescing[call.thread].append(call)
        else:
            self.ended_together([call], work, marker)

    def ended_together(self, calls: list[Call], work: Any, marker: Any) -> None:
        """Note that coalesced calls were started as one."""
        if calls and (work is not None or marker is not None):
            self.pending.add(Handle(work, marker, calls))
            for listener in self.listeners:
                listener.begins(work, [call.event for call in calls])
        elif calls:
            for call in calls:
                self.finish(call)

    def leaves_out(self, work: Any) -> bool:
        """Tell listeners that a wait begins, those of inner blocks first; whether one of them leaves it out."""
        return any(listener.waits(work) for listener in self.listeners)

    def wait(self, handle: Handle, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call torch's wait, and show meanwhile that this thread waits in the call."""
        call, now = handle.calls[0], monotonic()
        for one in handle.calls:
            one.event.wait_begin_s = now
        self.blocked[get_ident()] = call
        if self.board is not None and not call.stays_waited:
            self.board.waited(call.number, True)
        try:
            out = original(*args, **kwargs)
        except BaseException:
            self.leave(call)
            raise
        self.blocked.pop(get_ident(), None)
        self.waited(handle)
        return out

    def waited_late(self, events: list[Event]) -> None:
        """Note a wait for calls that have ended: it takes no time."""
        for event in events:
            event.wait_begin_s = event.waited_s = monotonic()

    def leave(self, call: Call) -> None:
        """Note that this thread waits no longer."""
        self.blocked.pop(get_ident(), None)
        if self.board is not None:
            self.board.waited(call.number, False)

    def waited(self, handle: Handle) -> None:
        """Note that a wait returned: on the CPU the call has ended, on a device its stream will tell."""
        now = monotonic()
        for call in handle.calls:
            call.event.waited_s = now
        if handle.is_device:
            self.pending.look(handle)
        else:
            self.pending.end(handle)

    def finish(self, call: Call, handle: Handle | None = None) -> None:
        """Note that a call ended."""
        event = call.event
        event.end_s = monotonic()
        if event.op == "recv" and event.peer is None and handle is not None:
            self._name_source(call, handle)
        if self.board is not None:
            self.board.finish(call.number, event.end_s)

    def _name_source(self, call: Call, handle: Handle) -> None:
        """A receive from any rank learns its peer, and takes its number, when it has ended."""
        event = call.event
        event.peer = call.group.global_rank(handle.source())
        if event.peer is not None:
            event.seq = call.group.next_message(event.peer, event.rank)
            self._mark_message(event, (event.peer, event.rank))
        if self.board is not None:
            self.board.write(event, number=call.number)

    def waiting(self) -> dict[int, Event]:
        """Thread -> the call that it waits in now."""
        self.pending.poll()
        found: dict[int, Event] = {}
        for handle in sorted(self.pending.handles(), key=lambda handle: handle.calls[0].event.begin_s):
            call = handle.calls[0]
            if call.waits_unseen:
                found.setdefault(call.thread, call.event)
        found.update({thread: call.event for thread, call in list(self.blocked.items())})
        return {thread: copy.copy(event) for thread, event in found.items()}

    def reset(self) -> None:
        """Forget groups, counts, calls and listeners, after the groups were torn down; open logs keep what they have.
        """
        self.listeners = ()
        self.groups.reset()
        self.events.clear()
        if self.board is not None:
            self.board.clear()
        self.pending.clear()
        self.blocked.clear()
        self.coalescing.clear()


def _event(op: str, group: Group, traits: Traits, is_async: bool, origin: Origin) -> Event:
    tensor, (sent, received) = traits.tensor, traits.sent_received
    if tensor is None:
        shape, dtype, offset = (), "", 0
    else:
        shape, dtype, offset = tensor.shape, dtype_name(tensor.dtype), tensor.storage_offset()
    return Event(
        group.rank, 0, op, group.axis, group.ranks, group.global_rank(traits.peer),
        tuple(shape if traits.shape is None else traits.shape), dtype, traits.numel, offset,
        traits.splits, traits.reduction, sent, received, is_async, monotonic(), None,
        origin.line, origin.function, traits.tag, traits.splits_received, group.copy,
    )


@functools.cache
def dtype_name(dtype: Any) -> str:
    """"float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")
