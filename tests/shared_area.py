"""The memory and the signals of form `peer` without a GPU: files that all ranks map, and calls that wait on the spot.

It shows which block is read and written behind which signal, not the order of streams. A slot is poisoned when it is
freed, so a read that comes too late gives nan.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist

from tpcourse.overlap import area, peer

SLOT_BYTES, NUM_SIGNALS, PATIENCE_S = 2**16, 64, 60.0


class Handle:
    """What `rendezvous` would return; `rank` is this rank."""

    def __init__(self, folder: str, name: str, group: dist.ProcessGroup) -> None:
        self.rank, p = dist.get_rank(group), dist.get_world_size(group)
        paths = [Path(folder, f"{name}-{rank}") for rank in range(p)]
        sizes = area.SLOTS * SLOT_BYTES, NUM_SIGNALS * p
        paths[self.rank].write_bytes(b"\xff" * sizes[0] + bytes(4 * sizes[1]))  # nan, and no signal
        dist.barrier(group)
        whole = [torch.from_file(str(path), True, sizes[0] + 4 * sizes[1], dtype=torch.uint8) for path in paths]
        self.memory = [one[: sizes[0]] for one in whole]
        self.signals = [one[sizes[0] :].view(torch.int32).view(NUM_SIGNALS, p) for one in whole]
        self.log: list[str] = []

    def get_buffer(self, rank, shape, dtype, start):
        assert start * dtype.itemsize % 256 == 0, "products are slower where they begin elsewhere"
        return self.memory[rank].view(dtype)[start : start + math.prod(shape)].view(*shape)

    def put_signal(self, rank, channel):
        time.sleep(random.random() * 1e-4)
        self._until(self.signals[rank][channel], self.rank, 0)
        self.signals[rank][channel][self.rank] = 1

    def wait_signal(self, rank, channel):
        self._until(self.signals[self.rank][channel], rank, 1)
        self.signals[self.rank][channel][rank] = 0

    def _until(self, row, at, value):
        end = time.monotonic() + PATIENCE_S
        while int(row[at]) != value:
            assert time.monotonic() < end, f"no signal on rank {self.rank}: {self.log[-20:]}"
            time.sleep(1e-4)


class SharedSlot(area.Slot):
    """A slot whose copying stream is the rank itself."""

    def follow(self):
        pass

    def apart(self):
        return contextlib.nullcontext()

    def join(self):
        pass

    def fork(self):
        pass

    def second(self):
        return contextlib.nullcontext()

    def unite(self):
        pass

    def free(self, owner):
        """Poison what was read, then say so: the room here, before the first owner may write, or the owner's rooms."""
        handle = self.area.handle
        if self.area.kind == "gather":
            if self.half not in self.area.poisoned:
                self.block(handle.rank, 0, (self.room,)).fill_(math.nan)
            self.area.poisoned.add(self.half)
        else:
            handle.memory[owner][self.half * SLOT_BYTES : (self.half + 1) * SLOT_BYTES] = 255
        super().free(owner)


@contextlib.contextmanager
def shared_areas(folder: str, group: dist.ProcessGroup) -> Iterator[None]:
    """In the block, form `peer` runs on the CPU."""
    areas: dict[str, SimpleNamespace] = {}

    def area_of(kind, tokens, x, slot_bytes, owners):
        assert slot_bytes <= SLOT_BYTES
        if kind not in areas:
            handle = Handle(folder, kind, group)
            made = SimpleNamespace(kind=kind, handle=handle, slot_bytes=SLOT_BYTES, turn=0, poisoned=set())
            for slot in range(area.SLOTS):
                for owner in owners:
                    made.handle.put_signal(owner, slot)
            areas[kind] = made
        made = areas[kind]

        def next_slot(dtype, room):
            made.turn += 1
            made.poisoned.discard(made.turn % area.SLOTS)
            return SharedSlot(made, made.turn % area.SLOTS, dtype, room)

        return SimpleNamespace(next_slot=next_slot)

    with mock.patch.object(peer, "area_of", area_of):
        yield
