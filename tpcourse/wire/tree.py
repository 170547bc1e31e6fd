"""Binomial tree: the number of ranks that have the data doubles with every step.

ceil(log2 p) steps, but each carries the whole array: good for small messages, bad for long ones (Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005). Ranks are
counted from the root: v = (r - root) mod p, so that the root is 0.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.wire.exchange import receive, send
from tpcourse.wire.inputs import place, require_data, require_peer


def tree_broadcast(x: Tensor, *, root: int = 0, group: dist.ProcessGroup) -> Tensor:
    """The root's x on every rank: whoever has it passes it on, to a rank 1, then 2, then 4 ... places away.

    Shapes: [...] -> [...]; elsewhere x gives only shape and dtype.
    Traffic: ceil(log2 p) steps; the root sends ceil(log2 p) n bytes, rank v n bytes for every power of two
    d with v < d and v + d < p.
    Raises: ValueError if the root is not a rank of the group.
    """
    rank, p = place(group)
    require_peer(root, p)
    require_data(x)
    v = (rank - root) % p
    if rank == root:
        result = x.clone(memory_format=torch.contiguous_format)
    else:
        result = torch.empty_like(x, memory_format=torch.contiguous_format)
    for distance in _distances(p):
        if v < distance and v + distance < p:
            send(result, to=(rank + distance) % p, group=group)
        elif distance <= v < 2 * distance:
            receive(result, from_=(rank - distance) % p, group=group)
    return result


def tree_reduce(x: Tensor, *, root: int = 0, group: dist.ProcessGroup) -> Tensor | None:
    """The sum of all ranks' x on the root, None elsewhere: the broadcast run backwards, adding.

    Shapes: [...] -> [...] on the root.
    Traffic: ceil(log2 p) steps; every rank but the root sends n bytes, once.
    Raises: ValueError if the root is not a rank of the group.
    """
    rank, p = place(group)
    require_peer(root, p)
    require_data(x)
    v = (rank - root) % p
    total = x.clone(memory_format=torch.contiguous_format)
    received = torch.empty_like(total)
    for distance in reversed(_distances(p)):
        if v < distance and v + distance < p:
            receive(received, from_=(rank + distance) % p, group=group)
            total += received
        elif distance <= v < 2 * distance:
            send(total, to=(rank - distance) % p, group=group)
    return total if rank == root else None


def tree_all_reduce(x: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """The sum of all ranks' x on every rank: reduce to rank 0, which then broadcasts.

    Shapes: [...] -> [...].
    Traffic: 2 ceil(log2 p) steps; rank 0 sends ceil(log2 p) n bytes, every other rank n, and n more for
    each rank it passes the sum on to.
    """
    total = tree_reduce(x, root=0, group=group)
    return tree_broadcast(x if total is None else total, root=0, group=group)


def _distances(p: int) -> list[int]:
    """1, 2, 4, ... below p."""
    return [1 << bit for bit in range((p - 1).bit_length())]
