"""Ring algorithms: every rank sends to its right neighbour and receives from its left one, all at once.

Every link carries the same number of bytes in every step, and no algorithm sends fewer (Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). The price is p - 1 steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.dims import split_sizes
from tpcourse.wire.exchange import exchange
from tpcourse.wire.inputs import gathered_sizes, place, require_data, scattered_sizes


def ring_all_gather(shard: Tensor, *, group: dist.ProcessGroup, sizes: Sequence[int] | None = None) -> Tensor:
    """All shards in rank order on every rank: each shard travels once round the ring.

    In step s rank r passes on piece r - s, which it received in the step before, and receives piece r - s -
    1.

    Shapes: [n/p, ...] -> [n, ...]; uneven shards need all their `sizes`.
    Traffic: p - 1 steps; rank r sends every piece but that of rank r + 1, (p-1)/p n bytes where they are
    equal.
    Raises: ValueError if the sizes do not fit.
    """
    rank, p = place(group)
    require_data(shard, dim=0)
    sizes = gathered_sizes(shard, sizes, rank, p)
    result = shard.new_empty(sum(sizes), *shard.shape[1:])
    pieces = result.split(sizes)  # views: what fills a piece fills the result
    pieces[rank].copy_(shard)
    right, left = (rank + 1) % p, (rank - 1) % p
    for step in range(p - 1):
        exchange(pieces[(rank - step) % p], right, pieces[(rank - step - 1) % p], left, group=group)
    return result


def ring_reduce_scatter(x: Tensor, *, group: dist.ProcessGroup, sizes: Sequence[int] | None = None) -> Tensor:
    """Piece r of the sum of all ranks' x on rank r: a partial sum of each piece travels once round the ring.

    In step s rank r sends its partial sum of piece r - s - 1 and adds what it receives to its own piece
    r - s - 2. The sum of piece r starts on rank r + 1 and ends, complete, on rank r.

    Shapes: [n, ...] -> [sizes[r], ...], n/p where p divides n.
    Traffic: p - 1 steps; rank r sends every piece but its own, (p-1)/p n bytes where they are equal.
    Raises: ValueError if the sizes do not fit.
    Trap: a ring turned the other way, or one that starts at piece r, gives right sums on the wrong ranks.
    """
    rank, p = place(group)
    require_data(x, dim=0)
    partial = x.clone(memory_format=torch.contiguous_format)  # x itself stays as it is
    pieces = partial.split(scattered_sizes(x, sizes, p))
    right, left = (rank + 1) % p, (rank - 1) % p
    for step in range(p - 1):
        outgoing, mine = pieces[(rank - step - 1) % p], pieces[(rank - step - 2) % p]
        received = torch.empty_like(mine)
        exchange(outgoing, right, received, left, group=group)
        mine += received
    return pieces[rank].clone()  # frees the other pieces


def ring_all_reduce(x: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """The sum of all ranks' x on every rank: reduce-scatter, then all-gather.

    Any shape and any length: the flat x is cut by `split_sizes` into pieces c_0 ... c_{p-1}, some of them
    empty where there are fewer elements than ranks.

    Shapes: [...] -> [...].
    Traffic: 2(p-1) steps; rank r sends 2n - c_r - c_{r+1}, which is 2(p-1)/p n bytes where p divides n.
    Trap: the result is equal on all ranks to the last bit, but it is not the sum in rank order.
    """
    _, p = place(group)
    require_data(x)
    flat = x.reshape(-1)
    sizes = split_sizes(flat.numel(), p)
    shard = ring_reduce_scatter(flat, group=group, sizes=sizes)
    return ring_all_gather(shard, group=group, sizes=sizes).reshape(x.shape)
