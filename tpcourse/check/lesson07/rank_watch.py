"""Runs in a rank: which kernels an answer borrows, what it holds at any moment, and which gathers it waited for."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage

from tpcourse.check.borrowed import borrowed_kernel
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson07.common import OWN
from tpcourse.check.lesson07.rank_names import named_storages
from tpcourse.ledger.waits import noting_waits
from tpcourse.memory import Peak
from tpcourse.memory.storages import key_of, storages_of
from tpcourse.memory.watching import Watcher

LIMIT_S = 3


def note_borrowed(outcome: Outcome, answer: Any) -> None:
    """Note the first finished part of the course that the answer mentions."""
    outcome.borrowed = borrowed_kernel(answer, OWN)


class Held(Watcher):
    """`with Held(outcome) as held:` then `held.sizes(most)`: of all tensors made in the block that are still there.

    A storage counts with the size that it has now, however many tensors look at it.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(Peak())
        self.outcome = outcome
        self.under_way: list[tuple[Callable[[], Any], Any]] = []  # what gives a work, and its event; until its wait
        self.waited: list[Any] = []  # events
        self.gathers: Callable[[], None] = _nothing  # hears of each all-gather

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_gather = "allgather" in func._opname.replace("_", "")
        if func.namespace == "c10d" and is_gather:  # has its room already; later nobody else holds its work yet
            self.gathers()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func.namespace == "c10d":
            self._note(result)
        if func.namespace == "_c10d_functional" and is_gather:
            self.gathers()
        return result

    def _note(self, result: Any) -> None:
        events = self.outcome.log._events  # not `events`, which asks which calls have ended and forgets those
        boxed = result[-1] if isinstance(result, tuple | list) and result else result
        if events and events[-1].is_async and isinstance(boxed, torch.ScriptObject):
            work = dist.Work.unbox(boxed)
            self.under_way.append((lambda: work, events[-1]))  # held until the answer holds it

    def is_waited(self, event: Any) -> bool:
        """Whether a call was waited for, by its work or by its tensor; one that waits by itself was."""
        told = event.wait_begin_s is not None or any(event is other for other in self.waited)
        return told or not event.is_async

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that were there before the block, too."""
        for storage in (storage for tensor in tensors for storage in storages_of(tensor)):
            key = key_of(storage)
            self.made[key] = weakref.ref(storage, partial(self._gone, key, 0))

    def sizes(self, most: int, more: Iterable[Any] = ()) -> dict[int, int]:
        """Key -> bytes of every storage that is held now.

        The thread that sends lets go of a tensor a little after it has told that it was sent. So what is above `most`
        counts at once if some name, or one of `more`, keeps it, and otherwise if nobody lets go of it.
        """
        found = self.alive()
        named = named_storages(more) if sum(found.values()) > most else set()
        end = time.monotonic() + LIMIT_S
        while sum(found.values()) > most and time.monotonic() < end:
            kept = {key: size for key, size in found.items() if key in named}
            if sum(kept.values()) > most:
                return kept
            time.sleep(0.001)
            found = self.alive()
        return found

    def alive(self) -> dict[int, int]:
        """Key -> bytes of every storage that is there; the ledger, once asked, lets go of calls that have ended."""
        assert self.outcome.events is not None
        works = ((give(), event) for give, event in self.under_way)
        self.under_way = [(_nothing if work is None else weakref.ref(work), event) for work, event in works]
        storages = ((key, reference()) for key, reference in list(self.made.items()))
        return {key: _bytes(storage) for key, storage in storages if storage is not None}

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Note which calls this thread waits for in the block."""
        try:
            with noting_waits(self._waited):
                yield
        finally:
            self.under_way.clear()

    def _waited(self, work: Any) -> None:
        self.waited += [event for give, event in self.under_way if give() is work]
        self.under_way = [row for row in self.under_way if row[0]() is not work]


def _bytes(storage: UntypedStorage) -> int:
    """Of memory: a tensor around another one, as functional collectives give, has a size and no memory."""
    try:
        return storage.nbytes() if storage.data_ptr() else 0
    except RuntimeError:
        return 0


def _nothing() -> None:
    """What a work gives that nobody holds any more, and who hears of gathers if nobody wants to."""
