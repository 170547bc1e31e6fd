"""`peak`: the most bytes that a block holds at one time, seen operation by operation."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tpcourse.memory.counts import Peak
from tpcourse.memory.storages import key_of, storages_of, tensors_in


@contextmanager
def peak() -> Iterator[Peak]:
    """`with peak() as seen:` counts the bytes of the tensors that the block makes, forward and backward, on
    any device.

    A storage counts from the operation that makes it until nothing refers to it any more. What was there
    before is not counted; what stays, such as gradients and moments, is. `seen.mark("backward")` names a
    moment.

    Trap: what an operation allocates and frees inside itself is seen by a GPU's allocator only
    (`seen.allocator`, for which the allocator's own peak is reset).
    """
    seen = Peak()
    before = _allocated()
    watcher = Watcher(seen)
    try:
        with watcher:
            yield seen
    finally:
        watcher.finish()
        if before is not None:
            seen.allocator = torch.cuda.max_memory_allocated() - before


def _allocated() -> int | None:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


class Watcher(TorchDispatchMode):
    """Sees every operation's arguments and results, and the end of each storage."""

    def __init__(self, seen: Peak) -> None:
        super().__init__()
        self.seen, self.now = seen, 0
        self.made: dict[int, Any] = {}
        self.found: dict[int, Any] = {}  # there before the block

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for storage in _storages((args, kwargs)):
            if key_of(storage) not in self.made and key_of(storage) not in self.found:
                key = key_of(storage)
                self.found[key] = weakref.ref(storage, partial(self._forget, key))
        result = func(*args, **kwargs)
        for storage in _storages(result):
            key, size = key_of(storage), storage.nbytes()
            if key not in self.made and key not in self.found:
                self.made[key] = weakref.ref(storage, partial(self._gone, key, size))
                self.now += size
        self.seen.curve.append(self.now)
        return result

    def _forget(self, key: int, _: Any) -> None:
        self.found.pop(key, None)

    def _gone(self, key: int, size: int, _: Any) -> None:
        if self.made.pop(key, None) is not None:
            self.now -= size

    def finish(self) -> None:
        """Note what is left, and look no longer."""
        self.seen.curve.append(self.now)
        self.made.clear()
        self.found.clear()


def _storages(value: Any) -> Iterator[torch.UntypedStorage]:
    for tensor in tensors_in(value):
        yield from storages_of(tensor)
