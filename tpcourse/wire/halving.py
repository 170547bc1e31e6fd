"""Halving and doubling: as few bytes as a ring, in log2(p) steps instead of p - 1.

Partners lie 1, 2, 4 ... seats apart. Reduce-scatter by recursive halving, all-gather by recursive doubling,
and both in a row as Rabenseifner's all-reduce (Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", 2005). Where p is no power of two, some ranks are guests: each hands its
data to the rank before it, its host, which works for both and hands it the result. That costs two steps
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.dims import split_sizes
from tpcourse.wire.exchange import exchange, receive, send
from tpcourse.wire.inputs import gathered_sizes, place, require_data, scattered_sizes


@dataclass(frozen=True)
class Seats:
    """Seats for p ranks, a power of two. Ranks 0 and 1, 2 and 3, ... share a seat until each rank has one."""

    rank: int
    p: int

    @property
    def num_seats(self) -> int:
        """q, the largest power of two that is not above p."""
        return 1 << (self.p.bit_length() - 1)

    @property
    def num_guests(self) -> int:
        """p - q."""
        return self.p - self.num_seats

    @property
    def host(self) -> int | None:
        """The rank that works for this one, if it is a guest."""
        return self.rank - 1 if self.rank < 2 * self.num_guests and self.rank % 2 else None

    @property
    def guest(self) -> int | None:
        """The rank that this one works for besides itself, if it is a host."""
        return self.rank + 1 if self.rank < 2 * self.num_guests and self.rank % 2 == 0 else None

    @property
    def seat(self) -> int:
        """Where this rank sits; a guest's is its host's."""
        return self.rank // 2 if self.rank < 2 * self.num_guests else self.rank - self.num_guests

    def rank_of(self, seat: int) -> int:
        """The rank that works on a seat; the seat's data begin with that rank's piece."""
        return seat + min(seat, self.num_guests)

    def starts(self, sizes: Sequence[int]) -> list[int]:
        """Where each seat's data begin in an array of one piece per rank, and where the last ends."""
        offsets = [0, *accumulate(sizes)]
        return [offsets[self.rank_of(seat)] for seat in range(self.num_seats)] + [offsets[-1]]


def halving_reduce_scatter(x: Tensor, *, group: dist.ProcessGroup, sizes: Sequence[int] | None = None) -> Tensor:
    """Piece r of the sum of all ranks' x on rank r, by recursive halving.

    In each step a rank gives away the half that its partner will keep and adds the other half it is given.

    Shapes: [n, ...] -> [sizes[r], ...], n/p where p divides n.
    Traffic: log2(p) steps, (p-1)/p n bytes, where p is a power of two and divides n. Otherwise log2(q) + 2
    steps: a guest sends n, a seat all but its own data, and a host its guest's piece besides.
    Raises: ValueError if the sizes do not fit.
    """
    rank, p = place(group)
    require_data(x, dim=0)
    sizes = scattered_sizes(x, sizes, p)
    partial = x.clone(memory_format=torch.contiguous_format)
    pieces, seats = partial.split(sizes), Seats(rank, p)
    _take_in_guest(partial, seats, group)
    if seats.host is not None:
        receive(pieces[rank], from_=seats.host, group=group)
    else:
        _halve(partial, seats.starts(sizes), seats, group)
    if seats.guest is not None:
        send(pieces[seats.guest], to=seats.guest, group=group)
    return pieces[rank].clone()  # frees the other pieces


def doubling_all_gather(shard: Tensor, *, group: dist.ProcessGroup, sizes: Sequence[int] | None = None) -> Tensor:
    """All shards in rank order on every rank, by recursive doubling.

    In each step two partners swap all they have, so what a rank has doubles.

    Shapes: [n/p, ...] -> [n, ...]; uneven shards need all their `sizes`.
    Traffic: log2(p) steps, (p-1)/p n bytes, where p is a power of two and shards are equal. Otherwise
    log2(q) + 2 steps: a guest sends its shard, a seat the data of 1, 2, 4 ... seats, and a host n besides.
    Raises: ValueError if the sizes do not fit.
    """
    rank, p = place(group)
    require_data(shard, dim=0)
    sizes = gathered_sizes(shard, sizes, rank, p)
    result = shard.new_empty(sum(sizes), *shard.shape[1:])
    pieces, seats = result.split(sizes), Seats(rank, p)
    pieces[rank].copy_(shard)
    if seats.guest is not None:
        receive(pieces[seats.guest], from_=seats.guest, group=group)
    if seats.host is not None:
        send(pieces[rank], to=seats.host, group=group)
    else:
        _double(result, seats.starts(sizes), seats, group)
    _see_off_guest(result, seats, group)
    return result


def halving_doubling_all_reduce(x: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """The sum of all ranks' x on every rank: recursive halving, then recursive doubling (Rabenseifner).

    Any shape and any length: the flat x is cut by `split_sizes` into one piece per seat.

    Shapes: [...] -> [...].
    Traffic: 2 log2(p) steps, 2(p-1)/p n bytes, where p is a power of two and divides n. Otherwise 2 log2(q)
    + 2 steps: a guest sends n, a seat all but its own data and then the data of 1, 2, 4 ... seats, a host n
    besides.
    """
    rank, p = place(group)
    require_data(x)
    total = x.clone(memory_format=torch.contiguous_format).reshape(-1)
    seats = Seats(rank, p)
    starts = [0, *accumulate(split_sizes(total.numel(), seats.num_seats))]
    _take_in_guest(total, seats, group)
    if seats.host is None:
        _halve(total, starts, seats, group)
        _double(total, starts, seats, group)
    _see_off_guest(total, seats, group)
    return total.reshape(x.shape)


def _halve(array: Tensor, starts: Sequence[int], seats: Seats, group: dist.ProcessGroup) -> None:
    low, high = 0, seats.num_seats  # the seats whose data this rank still sums
    while high - low > 1:
        middle = (low + high) // 2
        if seats.seat < middle:
            keep, give, partner = (low, middle), (middle, high), seats.seat + (middle - low)
        else:
            keep, give, partner = (middle, high), (low, middle), seats.seat - (middle - low)
        mine, theirs = (array[starts[first] : starts[end]] for first, end in (keep, give))
        received = torch.empty_like(mine)
        exchange(theirs, seats.rank_of(partner), received, seats.rank_of(partner), group=group)
        mine += received
        low, high = keep


def _double(array: Tensor, starts: Sequence[int], seats: Seats, group: dist.ProcessGroup) -> None:
    distance = 1  # how many seats' data this rank has
    while distance < seats.num_seats:
        first = seats.seat // distance * distance
        other = first ^ distance
        mine, theirs = (array[starts[seat] : starts[seat + distance]] for seat in (first, other))
        partner = seats.rank_of(seats.seat ^ distance)
        exchange(mine, partner, theirs, partner, group=group)
        distance *= 2


def _take_in_guest(array: Tensor, seats: Seats, group: dist.ProcessGroup) -> None:
    if seats.host is not None:
        send(array, to=seats.host, group=group)
    if seats.guest is not None:
        received = torch.empty_like(array)
        receive(received, from_=seats.guest, group=group)
        array += received


def _see_off_guest(array: Tensor, seats: Seats, group: dist.ProcessGroup) -> None:
    if seats.host is not None:
        receive(array, from_=seats.host, group=group)
    if seats.guest is not None:
        send(array, to=seats.guest, group=group)
