"""Runs in a rank: products and calls in the order of the program, which is the same on every machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from tpcourse.ledger import Event, ledger
from tpcourse.ledger.waits import following
from tpcourse.timeline.span import COMMUNICATION, COMPUTE, Span

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv")


def order(call: Callable[..., object], *args: Any, **options: Any) -> list[Span]:
    """This rank's spans of call(*args, **options): a product takes 1, a wait 1 if no product ran meanwhile, all else 0.

    A call lasts from where the program begins it to where it waits for it. `tpcourse.draw.order` draws what the ranks
    found. Trap: this is the order in which things are begun, not a time: what is under a product here *may* be hidden.
    """
    import torch.distributed as dist

    seen = _Order(dist.get_rank())
    with ledger() as log, following(seen.waited, any_thread=True):
        seen.events = log._events  # not `events`, which asks which calls have ended
        with seen:
            call(*args, **options)
    return seen.finished()


class _Order(TorchDispatchMode):
    """Counts products and waits."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.now = rank, 0
        self.events: list[Event] = []
        self.begun: list[int] = []
        self.ends: dict[int, int] = {}
        self.spans: list[Span] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._look()
        if func._schema.name.split("::")[1].strip("_") in PRODUCTS:
            self.spans.append(Span(self.rank, COMPUTE, "product", self.now, self.now + 1))
            self.now += 1
        return result

    def _look(self) -> None:
        """Calls that have begun since."""
        for event in self.events[len(self.begun) :]:
            self.begun.append(self.now)
            if not event.is_async:
                self._end(event)

    def waited(self, work: Any, events: list[Event]) -> None:
        """A wait begins."""
        self._look()
        for event in events:
            self._end(event)

    def _end(self, event: Event) -> None:
        number = next(number for number, other in enumerate(self.events) if other is event)
        if number not in self.ends:
            self.now = max(self.now, self.begun[number] + 1)
            self.ends[number] = self.now

    def finished(self) -> list[Span]:
        """The products, and all calls; one that nobody waited for lasts to the end."""
        self._look()
        calls = [
            Span(self.rank, COMMUNICATION, event.op, begin, self.ends.get(number, max(self.now, begin + 1)))
            for number, (event, begin) in enumerate(zip(self.events, self.begun, strict=True))
        ]
        return sorted([*self.spans, *calls], key=lambda span: (span.begin_s, span.lane))
