"""Torch's collectives as plain functions: a tensor in, a new tensor out, on gloo and on NCCL alike.

What they add to `torch.distributed`: nothing is overwritten; uneven pieces work everywhere (padded to the
longest, as neither torch's single-tensor calls nor gloo take uneven ones); pieces may lie along any dim; one
name for calls that torch 2.13 renamed. In Traffic, n counts the bytes of the whole array. Every rank of the
group must call, in the same order, with the same shape, dtype, op and root.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.dims import require_divisible
from tpcourse.wire.inputs import gathered_sizes, place, require_data, require_peer, scattered_sizes

# Torch 2.13 renamed these calls; the old name warns there and the new one is missing before.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_reduce(x: Tensor, *, group: dist.ProcessGroup, op: str = "sum") -> Tensor:
    """The reduction of all ranks' x on every rank: op is sum, avg, max, min or product.

    Shapes: [...] -> [...]. Traffic: one all-reduce, 2(p-1)/p n bytes.
    Raises: ValueError if op is unknown.
    """
    place(group)
    require_data(x)
    result = _fresh(x)
    dist.all_reduce(result, op=_reduce_op(op), group=group)
    return result


def all_gather(shard: Tensor, *, group: dist.ProcessGroup, dim: int = 0, sizes: Sequence[int] | None = None) -> Tensor:
    """All shards, joined along dim in rank order, on every rank.

    Shapes: [n/p, ...] -> [n, ...] for dim 0; uneven shards need all their `sizes` along dim.
    Traffic: one all-gather, (p-1)/p n bytes; uneven shards count as p times the longest.
    Raises: ValueError if the sizes do not fit.
    """
    rank, p = place(group)
    require_data(shard, dim=dim)
    sizes = gathered_sizes(shard, sizes, rank, p, dim)
    longest = max(sizes)
    padded = pad_to(shard.movedim(dim, 0), longest)
    result = padded.new_empty(p * longest, *padded.shape[1:])
    all_gather_single(result, padded, group=group)
    return _joined(result.split(longest or 1), sizes).movedim(0, dim).contiguous()


def reduce_scatter(
    x: Tensor, *, group: dist.ProcessGroup, dim: int = 0, op: str = "sum", sizes: Sequence[int] | None = None
) -> Tensor:
    """Piece r along dim of the reduction of all ranks' x, on rank r.

    Shapes: [n, ...] -> [sizes[r], ...] for dim 0; `sizes` are `split_sizes(n, p)` unless given.
    Traffic: one reduce-scatter, (p-1)/p n bytes; uneven pieces count as p times the longest.
    Raises: ValueError if the sizes do not fit or op is unknown.
    """
    rank, p = place(group)
    require_data(x, dim=dim)
    sizes = scattered_sizes(x, sizes, p, dim)
    pieces = _padded_pieces(x.movedim(dim, 0), sizes)
    result = pieces.new_empty(pieces.shape[0] // p, *pieces.shape[1:])
    reduce_scatter_single(result, pieces, op=_reduce_op(op), group=group)
    return result[: sizes[rank]].movedim(0, dim).contiguous()


def broadcast(x: Tensor, *, root: int = 0, group: dist.ProcessGroup) -> Tensor:
    """The root's x on every rank.

    Shapes: [...] -> [...]; elsewhere x gives only shape and dtype.
    Traffic: one broadcast, n bytes from the root.
    Raises: ValueError if the root is not a rank of the group.
    """
    rank, p = place(group)
    require_peer(root, p)
    require_data(x)
    result = _fresh(x) if rank == root else torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.broadcast(result, src=dist.get_global_rank(group, root), group=group)
    return result


def reduce(x: Tensor, *, root: int = 0, group: dist.ProcessGroup, op: str = "sum") -> Tensor | None:
    """The reduction of all ranks' x on the root, None elsewhere (torch leaves partial sums there).

    Shapes: [...] -> [...] on the root. Traffic: one reduce, n bytes from every rank but the root.
    Raises: ValueError if the root is not a rank of the group or op is unknown.
    """
    rank, p = place(group)
    require_peer(root, p)
    require_data(x)
    result = _fresh(x)
    dist.reduce(result, dst=dist.get_global_rank(group, root), op=_reduce_op(op), group=group)
    return result if rank == root else None


def scatter(x: Tensor, *, root: int = 0, group: dist.ProcessGroup, sizes: Sequence[int] | None = None) -> Tensor:
    """Piece r of the root's x on rank r.

    Shapes: [n, ...] -> [sizes[r], ...]; elsewhere x gives only shape and dtype.
    Traffic: one scatter, (p-1)/p n bytes from the root; uneven pieces count as p times the longest.
    Raises: ValueError if the root is not a rank of the group or the sizes do not fit.
    """
    rank, p = place(group)
    require_peer(root, p)
    require_data(x, dim=0)
    sizes = scattered_sizes(x, sizes, p)
    longest = max(sizes)
    pieces = list(_padded_pieces(x, sizes).reshape(p, longest, *x.shape[1:])) if rank == root else None
    result = x.new_empty(longest, *x.shape[1:])
    dist.scatter(result, pieces, src=dist.get_global_rank(group, root), group=group)
    return result[: sizes[rank]].contiguous()


def gather(
    shard: Tensor, *, root: int = 0, group: dist.ProcessGroup, sizes: Sequence[int] | None = None
) -> Tensor | None:
    """All shards in rank order on the root, None elsewhere.

    Shapes: [n/p, ...] -> [n, ...] on the root; uneven shards need all their `sizes`.
    Traffic: one gather, a shard from every rank but the root; uneven shards count as the longest.
    Raises: ValueError if the root is not a rank of the group or the sizes do not fit.
    """
    rank, p = place(group)
    require_peer(root, p)
    require_data(shard, dim=0)
    sizes = gathered_sizes(shard, sizes, rank, p)
    padded = pad_to(shard, max(sizes))
    pieces = list(padded.new_empty(p, *padded.shape)) if rank == root else None
    dist.gather(padded, pieces, dst=dist.get_global_rank(group, root), group=group)
    return None if pieces is None else _joined(pieces, sizes)


def all_to_all(
    x: Tensor,
    *,
    group: dist.ProcessGroup,
    send_sizes: Sequence[int] | None = None,
    receive_sizes: Sequence[int] | None = None,
) -> Tensor:
    """Piece j of rank i's x becomes piece i of rank j's result: the transpose of the table of pieces.

    Shapes: [sum(send_sizes), ...] -> [sum(receive_sizes), ...]; without sizes all pieces are n/p long.
    Traffic: one all-to-all; a rank sends all but the piece for itself.
    Raises: ValueError unless there are p sizes each and they fit x, or p divides n where none are given.
    """
    rank, p = place(group)
    require_data(x, dim=0)
    if send_sizes is None and receive_sizes is None:
        send_sizes = [require_divisible(x.shape[0], p, "the length of dim 0")] * p
    outgoing = x.split(scattered_sizes(x, send_sizes, p))
    receive_sizes = gathered_sizes(outgoing[rank], receive_sizes, rank, p)
    result = x.new_empty(sum(receive_sizes), *x.shape[1:])
    send_sizes = [piece.shape[0] for piece in outgoing]
    dist.all_to_all_single(result, x.contiguous(), receive_sizes, send_sizes, group=group)
    return result


def _reduce_op(op: str) -> dist.ReduceOp:
    ops = {name: getattr(dist.ReduceOp, name.upper()) for name in ("sum", "avg", "max", "min", "product")}
    if op not in ops:
        raise ValueError(f"op = {op!r} is unknown: use one of {', '.join(ops)}")
    return ops[op]


def _fresh(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def pad_to(x: Tensor, length: int, dim: int = 0) -> Tensor:
    """x with zeros behind it along dim, up to `length`; contiguous."""
    missing = length - x.shape[dim]
    if missing == 0:
        return x.contiguous()
    return torch.cat([x, x.new_zeros(*x.shape[:dim], missing, *x.shape[dim + 1 :])], dim)


def _padded_pieces(x: Tensor, sizes: Sequence[int]) -> Tensor:
    longest = max(sizes)
    if min(sizes) == longest:
        return x.contiguous()
    return torch.cat([pad_to(piece, longest) for piece in x.split(list(sizes))])


def _joined(pieces: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    return torch.cat([piece[:size] for piece, size in zip(pieces, sizes, strict=False)])
