"""Runs in a rank: products, calls and waits of an answer in their order, and memory that was touched too early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson08.trace import EARLY, OVERWRITTEN, Moment
from tpcourse.ledger.waits import following

PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "mv": 0, "addmv": 1, "dot": 0}
"""Operation -> which argument is its first factor."""
NO_READERS = ("empty_like", "new_empty", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like")
"""Operations that look at a tensor's form, and not at its numbers."""


class Busy(NamedTuple):
    """Addresses of elements that a call under way reads, and writes, and its arguments: while they are held, no other
    tensor gets their memory.
    """

    read: frozenset[int]
    written: frozenset[int]
    held: Any = None


class Trace(TorchDispatchMode):
    """`run(answer)` under the trace fills in the outcome's `unwaited` and its facts `moments` and `races`.

    What an answer forgot to wait for is noted once, and then waited for, so that its values do not depend on who is
    faster.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome, self.log = outcome, outcome.log
        self.moments: list[Moment] = []
        self.races: list[str] = []
        self.works: list[tuple[Any, list[Any]]] = []
        self.waited: set[int] = set()
        self.waited_here: list[Any] = []  # works, by this trace
        self.busy: dict[int, Busy] = {}  # of calls under way, by the identity of their event

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1].strip("_")
        if func.namespace == "c10d":
            return self._call(name, func, args, kwargs)
        if self.busy:
            self._look(name, func, args, kwargs)
        if name in PRODUCTS:
            a, b = (args[PRODUCTS[name] + at] for at in (0, 1))
            self.moments.append(Moment(*_sizes(a, b), self._calls()))
        return func(*args, **kwargs)

    def _call(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        first, second = (_addresses(args[at]) if len(args) > at else frozenset() for at in (0, 1))
        touched = Busy(first, frozenset()) if name == "send" else Busy(second, first)
        self._note(touched)
        before = len(self.log._events)
        result = func(*args, **kwargs)
        for event in self.log._events[before:]:
            if event.is_async and not self._is_waited(event):
                self.busy[id(event)] = touched._replace(held=args)
        return result

    def _look(self, name: str, func: Any, args: Any, kwargs: Any) -> None:
        """What an operation reads and writes; views do neither."""
        read, written = set[int](), set[int]()
        for at, argument in enumerate(func._schema.arguments):
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            alias = argument.alias_info
            if alias is not None and alias.is_write:
                written |= _addresses(value)
            elif alias is None and name not in NO_READERS:
                read |= _addresses(value)
        self._note(Busy(frozenset(read), frozenset(written)))

    def _note(self, touched: Busy) -> None:
        """Compare with what is under way."""
        for event in list(self.log._events):
            busy = self.busy.get(id(event), Busy(frozenset(), frozenset()))
            too_early = (touched.read | touched.written) & busy.written
            if too_early or touched.written & busy.read:
                self.races.append(EARLY if too_early else OVERWRITTEN)
                del self.busy[id(event)]
                if event is not self.log._events[-1]:  # else its other end may wait for what follows here
                    self._wait_for(event)

    def _wait_for(self, event: Any) -> None:
        for work, events in self.works:
            if any(event is other for other in events):
                work.wait()
                self.waited_here.append(work)

    def _calls(self) -> tuple[tuple[str, bool], ...]:
        return tuple((event.op, self._is_waited(event)) for event in self.log._events)

    def _is_waited(self, event: Any) -> bool:
        return not event.is_async or id(event) in self.waited or event.wait_begin_s is not None

    def waited_for(self, work: Any, events: list[Any]) -> bool:
        """A wait for a work begins; True if this trace has waited already."""
        self.waited.update(map(id, events))
        for event in events:
            self.busy.pop(id(event), None)
        return any(work is other for other in self.waited_here)

    def run(self, answer: Callable[[], Any]) -> Any:
        """What the answer returns. `unwaited` are operations that nobody waited for; that is done now."""
        with following(self.waited_for) as self.works:
            with self:
                result = answer()
            late = [event for event in self.log._events if not self._is_waited(event)]
            self.outcome.unwaited = [event.op for event in late]
            self.outcome.facts.update(moments=self.moments, races=self.races)
            for event in late:
                self._wait_for(event)
        return result


def _sizes(a: Tensor, b: Tensor) -> tuple[int, int, int]:
    """m, k and n, with those of a batch in m."""
    k = a.shape[-1]
    return a.numel() // max(1, k), k, b.shape[-1] if b.dim() > 1 else 1


def _addresses(value: Any) -> frozenset[int]:
    """Of every element of a tensor, or of tensors in lists."""
    if isinstance(value, list | tuple):
        return frozenset().union(*map(_addresses, value))
    if not isinstance(value, torch.Tensor) or not value.numel():
        return frozenset()
    offsets = np.zeros((), dtype=np.int64)
    for size, stride in zip(value.shape, value.stride(), strict=True):
        offsets = np.add.outer(offsets, np.arange(size) * stride)
    return frozenset((value.data_ptr() + value.element_size() * offsets).ravel().tolist())
