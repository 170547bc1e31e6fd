"""Memory of this rank that the other ranks of its host read and write, and the signals that say when they may.

A kernel on any stream can put a signal into another rank's memory, or wait until one is there and take it away. So a
signal orders the streams of two GPUs without a word between the processes, in a captured CUDA graph too. Each area
has two slots, used in turn: a call writes into one while the other ranks still read what the last call left.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.overlap.tokens import Tokens
from tpcourse.timeline import communication

SLOTS = 2
MOST_PIECES = 4
MOST_RANKS = 8
ROUND = 2**21  # bytes: what a GPU maps at once

_areas: WeakKeyDictionary[dist.ProcessGroup, dict[str, Area]] = WeakKeyDictionary()
"""Kept as long as their group, which they must not hold."""


class Area:
    """The memory of one group for one kind of kernel, and the stream that copies; made by all ranks together.

    `owners` are the ranks that wait until this one has freed a slot, before they use it again.
    """

    def __init__(self, tp: dist.ProcessGroup, device: torch.device, slot_bytes: int, owners: list[int]) -> None:
        from torch.distributed import _symmetric_memory as symmetric

        self.device = device
        self.slot_bytes = max(1, -(-slot_bytes // ROUND)) * ROUND
        size = SLOTS * self.slot_bytes  # Trap: areas out of torch's pool would share one pad of signals
        self.memory = symmetric._SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, device)
        self.handle = symmetric.rendezvous(self.memory, tp.group_name)
        self.stream = torch.cuda.Stream(device, priority=-1)  # its signals go before the blocks of a product
        self.second = torch.cuda.Stream(device)  # for products beside those of the current stream
        self.turn, self.is_captured = 0, False
        self.handle.get_signal_pad(self.handle.rank, [], torch.int32).zero_()
        self.settle(tp)
        for slot in range(SLOTS):
            for owner in owners:
                self.handle.put_signal(owner, slot)  # all slots are free

    def settle(self, tp: dist.ProcessGroup) -> None:
        """Wait until all ranks have done all that they were given."""
        torch.cuda.synchronize(self.device)
        dist.barrier(tp, device_ids=[self.device.index] if dist.get_backend(tp) == "nccl" else None)

    def next_slot(self, dtype: torch.dtype, room: int) -> Slot:
        """The slot of this call, the same on all ranks, cut into rooms of so many elements."""
        self.is_captured |= torch.cuda.is_current_stream_capturing()
        self.turn += 1
        return Slot(self, self.turn % SLOTS, dtype, room)


class Slot(NamedTuple):
    """One call's part of an area."""

    area: Area
    half: int
    dtype: torch.dtype
    room: int

    def block(self, rank: int, number: int, shape: Sequence[int]) -> Tensor:
        """A block of this shape in room `number` of a rank's memory."""
        start = self.half * self.area.slot_bytes // self.dtype.itemsize
        return self.area.handle.get_buffer(rank, shape, self.dtype, start + number * self.room)

    def follow(self) -> None:
        """Let the copying stream wait for what the current stream was given until now."""
        self.area.stream.wait_stream(torch.cuda.current_stream(self.area.device))

    def apart(self) -> AbstractContextManager[object]:
        """In the block, work goes to the copying stream."""
        return torch.cuda.stream(self.area.stream)

    def beside(self) -> AbstractContextManager[object]:
        """The same, behind what the current stream was given until now."""
        self.follow()
        return self.apart()

    def join(self) -> None:
        """Let the current stream wait for the copying stream."""
        torch.cuda.current_stream(self.area.device).wait_stream(self.area.stream)

    def fork(self) -> None:
        """Let the second stream for products wait for what the current stream was given until now."""
        self.area.second.wait_stream(torch.cuda.current_stream(self.area.device))

    def second(self) -> AbstractContextManager[object]:
        """In the block, work goes to the second stream for products."""
        return torch.cuda.stream(self.area.second)

    def unite(self) -> None:
        """Let the current stream wait for the second stream."""
        torch.cuda.current_stream(self.area.device).wait_stream(self.area.second)

    def pull(self, theirs: Tensor, into: Tensor, rank: int, number: int) -> None:
        """Copy a rank's block behind its signal, beside the current stream."""
        with self.apart():
            self.wait(rank, number)
            self.copy(theirs, into, f"pull from rank {rank}")

    def copy(self, block: Tensor, into: Tensor, name: str) -> None:
        """Copy [b, R, D] between the memories of two ranks, on the current stream: communication in a timeline."""
        pairs = [(block, into)] if into.is_contiguous() else zip(block, into, strict=True)
        with communication(name):
            for source, target in pairs:  # Trap: a copy between GPUs with gaps is a kernel, or two copies
                target.copy_(source)

    def put(self, rank: int, number: int) -> None:
        """Signal `number` to a rank, behind what the current stream was given."""
        self.area.handle.put_signal(rank, self._channel(number))

    def wait(self, rank: int, number: int) -> None:
        """Let the current stream wait for signal `number` of a rank."""
        self.area.handle.wait_signal(rank, self._channel(number))

    def free(self, owner: int) -> None:
        """Tell a rank that this one has no more to do with what it put into the slot."""
        self.area.handle.put_signal(owner, self.half)

    def wait_free(self, rank: int) -> None:
        """Let the current stream wait until a rank has no more to do with what was put there two calls ago."""
        self.area.handle.wait_signal(rank, self.half)

    def _channel(self, number: int) -> int:
        return SLOTS + number * SLOTS + self.half


def aligned(numel: int) -> int:
    """So many elements, and up to the next 128: products are slower where they begin elsewhere."""
    return -(-numel // 128) * 128


def area_of(kind: str, tokens: Tokens, x: Tensor, slot_bytes: int, owners: list[int]) -> Area:
    """The group's area of this kind, of at least `slot_bytes`; all ranks must ask for as many.

    Traffic: none as a rule; the first call, and one that needs more than all before, meets the other ranks (a barrier).
    Raises: ValueError where there is no such memory, or it would have to grow in a graph's capture.
    """
    _require_peers(tokens, x)
    areas = _areas.setdefault(tokens.tp, {})
    found = areas.get(kind)
    if found is not None and found.slot_bytes >= slot_bytes:
        return found
    if torch.cuda.is_current_stream_capturing():
        raise ValueError(
            f"form = 'peer' needs {slot_bytes} bytes of shared memory in a captured graph, and has "
            f"{0 if found is None else found.slot_bytes}: call it once with these sizes before the capture"
        )
    if found is not None:
        found.settle(tokens.tp)  # nobody reads or writes it any more
        if found.is_captured:  # a graph has its addresses: keep it
            areas[f"{kind}, captured, {found.slot_bytes} bytes"] = found
    areas[kind] = Area(tokens.tp, x.device, slot_bytes, owners)
    return areas[kind]


def _require_peers(tokens: Tokens, x: Tensor) -> None:
    p = len(tokens.sizes)
    if not x.is_cuda or p > MOST_RANKS:
        raise ValueError(
            f"form = 'peer' copies between the memories of up to {MOST_RANKS} GPUs of one host, but x is on {x.device} "
            f"and p = {p}: use 'ring', which runs everywhere"
        )
