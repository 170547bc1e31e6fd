"""The first algorithm that comes to mind: the root talks to every other rank, one after another.

Right, easy to read, and slow: everything passes through one rank, so its time grows with p.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.wire.exchange import receive, send
from tpcourse.wire.inputs import gathered_sizes, place, require_data, require_peer, scattered_sizes


def naive_broadcast(x: Tensor, *, root: int = 0, group: dist.ProcessGroup) -> Tensor:
    """The root's x on every rank: the root sends it p - 1 times.

    Shapes: [...] -> [...]; elsewhere x gives only shape and dtype.
    Traffic: p - 1 steps; the root sends (p-1) n bytes, the others none.
    Raises: ValueError if the root is not a rank of the group.
    """
    rank, p = place(group)
    require_peer(root, p)
    require_data(x)
    if rank == root:
        for other in _others(root, p):
            send(x, to=other, group=group)
        return x.clone(memory_format=torch.contiguous_format)
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    receive(result, from_=root, group=group)
    return result


def naive_scatter(x: Tensor, *, root: int = 0, group: dist.ProcessGroup, sizes: Sequence[int] | None = None) -> Tensor:
    """Piece r of the root's x on rank r: the root sends each rank its own.

    Shapes: [n, ...] -> [sizes[r], ...], n/p where p divides n; elsewhere x gives only shape and dtype.
    Traffic: p - 1 steps; the root sends all but its own piece, (p-1)/p n bytes, the others none.
    Raises: ValueError if the root is not a rank of the group or the sizes do not fit.
    """
    rank, p = place(group)
    require_peer(root, p)
    require_data(x, dim=0)
    pieces = x.split(scattered_sizes(x, sizes, p))
    if rank == root:
        for other in _others(root, p):
            send(pieces[other], to=other, group=group)
        return pieces[rank].clone(memory_format=torch.contiguous_format)
    result = torch.empty_like(pieces[rank], memory_format=torch.contiguous_format)
    receive(result, from_=root, group=group)
    return result


def naive_gather(
    shard: Tensor, *, root: int = 0, group: dist.ProcessGroup, sizes: Sequence[int] | None = None
) -> Tensor | None:
    """All shards in rank order on the root, None elsewhere: the root receives them one after another.

    Shapes: [n/p, ...] -> [n, ...] on the root; uneven shards need all their `sizes`.
    Traffic: p - 1 steps; every rank but the root sends its shard.
    Raises: ValueError if the root is not a rank of the group or the sizes do not fit.
    """
    rank, p = place(group)
    require_peer(root, p)
    require_data(shard, dim=0)
    sizes = gathered_sizes(shard, sizes, rank, p)
    if rank != root:
        send(shard, to=root, group=group)
        return None
    result = shard.new_empty(sum(sizes), *shard.shape[1:])
    pieces = result.split(sizes)  # views: what fills a piece fills the result
    pieces[rank].copy_(shard)
    for other in _others(root, p):
        receive(pieces[other], from_=other, group=group)
    return result


def naive_reduce(x: Tensor, *, root: int = 0, group: dist.ProcessGroup) -> Tensor | None:
    """The sum of all ranks' x on the root, None elsewhere: the root receives and adds one after another.

    Shapes: [...] -> [...] on the root.
    Traffic: p - 1 steps; every rank but the root sends n bytes.
    Raises: ValueError if the root is not a rank of the group.
    """
    rank, p = place(group)
    require_peer(root, p)
    require_data(x)
    if rank != root:
        send(x, to=root, group=group)
        return None
    total = x.clone(memory_format=torch.contiguous_format)
    received = torch.empty_like(total)
    for other in _others(root, p):
        receive(received, from_=other, group=group)
        total += received
    return total


def naive_all_reduce(x: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """The sum of all ranks' x on every rank: reduce to rank 0, which then broadcasts.

    Shapes: [...] -> [...].
    Traffic: 2(p-1) steps; rank 0 sends (p-1) n bytes, every other rank n.
    """
    total = naive_reduce(x, root=0, group=group)
    return naive_broadcast(x if total is None else total, root=0, group=group)


def _others(root: int, p: int) -> list[int]:
    return [rank for rank in range(p) if rank != root]
