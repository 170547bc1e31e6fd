"""Pairs of collectives that are each other's backward: what moves activations forward moves gradients back.

A loss is a function of what all ranks hold. If y = A x, with x and y all ranks' tensors on top of each
other, then dx = A^T dy. The transpose of "every rank gets a copy" is "add up all copies", and so each
operation's backward is another collective of this file, and can be differentiated again.

Two kinds of tensors meet here. A *replicated* one is equal on all ranks and stands for one tensor: its
gradient is also equal on all ranks. A *split* or *partial* one differs from rank to rank, and so does its
gradient. `copy_sum` and `sum_copy` are f and g of Megatron-LM (arXiv:1909.08053, section 3), the gather and
scatter-sum pairs those of its sequence parallelism (arXiv:2205.05198, section 4.2.2).

In Traffic, n counts the bytes of the whole array and p the ranks. Every rank of the group must call
forward, and reach backward too: a rank whose tensor requires no gradient leaves the others waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from tpcourse import wire
from tpcourse.dims import require_divisible
from tpcourse.wire.inputs import gathered_sizes, place, require_dim, scattered_sizes


def copy_sum(x: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """Copy forward, sum backward: where a replicated x enters work that differs from rank to rank.

    y_r = x for every r, so dx = sum_r dy_r.
    Shapes: [...] -> [...]. Traffic: none forward; one all-reduce, 2(p-1)/p n bytes, backward.
    Trap: forgotten, y is right and dx is short by the other ranks' share.
    """
    return CopySum.apply(x, group)


def sum_copy(x: Tensor, *, group: dist.ProcessGroup) -> Tensor:
    """Sum forward, copy backward: where partial sums become one replicated tensor.

    y = sum_r x_r, so dx_r = dy.
    Shapes: [...] -> [...]. Traffic: one all-reduce, 2(p-1)/p n bytes, forward; none backward.
    Trap: summing dy again in backward makes every gradient p times too large.
    """
    return SumCopy.apply(x, group)


def gather_split(shard: Tensor, *, group: dist.ProcessGroup, dim: int, sizes: Sequence[int] | None = None) -> Tensor:
    """Gather forward, split backward: where a split tensor becomes one replicated tensor.

    y = (x_0, ..., x_{p-1}), so dx_r = piece r of dy.
    Shapes: [.., n/p, ..] -> [.., n, ..] along dim; uneven shards need all their `sizes`.
    Traffic: one all-gather, (p-1)/p n bytes, forward; none backward.
    Raises: ValueError if the sizes do not fit.
    Trap: only right if all ranks do the same with y; if each does other work, use `gather_scatter_sum`.
    """
    return GatherSplit.apply(shard, group, dim, _gathered(shard, group, dim, sizes))


def split_gather(x: Tensor, *, group: dist.ProcessGroup, dim: int, sizes: Sequence[int] | None = None) -> Tensor:
    """Split forward, gather backward: where each rank goes on with its piece of a replicated x.

    y_r = piece r of x, so dx = (dy_0, ..., dy_{p-1}).
    Shapes: [.., n, ..] -> [.., sizes[r], ..] along dim; `sizes` are `split_sizes(n, p)` unless given.
    Traffic: none forward; one all-gather, (p-1)/p n bytes, backward.
    Raises: ValueError if the sizes do not fit.
    """
    return SplitGather.apply(x, group, dim, _scattered(x, group, dim, sizes))


def gather_scatter_sum(
    shard: Tensor, *, group: dist.ProcessGroup, dim: int, sizes: Sequence[int] | None = None
) -> Tensor:
    """Gather forward, scatter-sum backward: where a split tensor enters work that differs from rank to rank.

    y_s = (x_0, ..., x_{p-1}) for every s, so dx_r = sum_s (piece r of dy_s).
    Shapes: [.., n/p, ..] -> [.., n, ..] along dim; uneven shards need all their `sizes`.
    Traffic: one all-gather forward, one reduce-scatter backward, (p-1)/p n bytes each.
    Raises: ValueError if the sizes do not fit.
    """
    return GatherScatterSum.apply(shard, group, dim, _gathered(shard, group, dim, sizes))


def scatter_sum_gather(x: Tensor, *, group: dist.ProcessGroup, dim: int, sizes: Sequence[int] | None = None) -> Tensor:
    """Scatter-sum forward, gather backward: where partial sums become a split tensor.

    y_r = sum_s (piece r of x_s), so dx_s = (dy_0, ..., dy_{p-1}) for every s.
    Shapes: [.., n, ..] -> [.., sizes[r], ..] along dim; `sizes` are `split_sizes(n, p)` unless given.
    Traffic: one reduce-scatter forward, one all-gather backward, (p-1)/p n bytes each.
    Raises: ValueError if the sizes do not fit.
    """
    return ScatterSumGather.apply(x, group, dim, _scattered(x, group, dim, sizes))


def all_to_all_pair(
    x: Tensor,
    *,
    group: dist.ProcessGroup,
    send_sizes: Sequence[int] | None = None,
    receive_sizes: Sequence[int] | None = None,
) -> Tensor:
    """All-to-all forward and backward: the pieces of dim 0 move, and their gradients move home.

    Piece s of y_r is piece r of x_s, so piece r of dx_s is piece s of dy_r: the same exchange, sizes swapped.
    Shapes: [sum(send_sizes), ...] -> [sum(receive_sizes), ...]; without sizes all pieces are n/p long.
    Traffic: one all-to-all each way; a rank sends all but the piece for itself.
    Raises: ValueError unless there are p sizes each and they fit x, or p divides n where none are given.
    """
    rank, p = place(group)
    if x.dim() > 0 and send_sizes is None and receive_sizes is None:
        send_sizes = [require_divisible(x.shape[0], p, "the length of dim 0")] * p
    send_sizes = _scattered(x, group, 0, send_sizes)
    mine = x.narrow(0, sum(send_sizes[:rank]), send_sizes[rank])
    return AllToAll.apply(x, group, send_sizes, gathered_sizes(mine, receive_sizes, rank, p))


class CopySum(Function):
    """`copy_sum` for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        place(group)
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return SumCopy.apply(dy, ctx.group), None


class SumCopy(Function):
    """`sum_copy` for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return wire.all_reduce(x, group=group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return CopySum.apply(dy, ctx.group), None


class GatherSplit(Function):
    """`gather_split` for autograd."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, group: dist.ProcessGroup, dim: int, sizes: Sequence[int]) -> Tensor:
        ctx.pieces = group, dim, sizes
        return wire.all_gather(shard, group=group, dim=dim, sizes=sizes)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return SplitGather.apply(dy, *ctx.pieces), None, None, None


class SplitGather(Function):
    """`split_gather` for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, dim: int, sizes: Sequence[int]) -> Tensor:
        ctx.pieces = group, dim, sizes
        piece = x.split(list(sizes), dim)[dist.get_rank(group)]
        return piece.clone(memory_format=torch.contiguous_format)  # a view would keep all of x alive

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return GatherSplit.apply(dy, *ctx.pieces), None, None, None


class GatherScatterSum(Function):
    """`gather_scatter_sum` for autograd."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, group: dist.ProcessGroup, dim: int, sizes: Sequence[int]) -> Tensor:
        ctx.pieces = group, dim, sizes
        return wire.all_gather(shard, group=group, dim=dim, sizes=sizes)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return ScatterSumGather.apply(dy, *ctx.pieces), None, None, None


class ScatterSumGather(Function):
    """`scatter_sum_gather` for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, dim: int, sizes: Sequence[int]) -> Tensor:
        ctx.pieces = group, dim, sizes
        return wire.reduce_scatter(x, group=group, dim=dim, sizes=sizes)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return GatherScatterSum.apply(dy, *ctx.pieces), None, None, None


class AllToAll(Function):
    """`all_to_all_pair` for autograd."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: dist.ProcessGroup, send_sizes: list[int], receive_sizes: list[int]
    ) -> Tensor:
        ctx.back = group, receive_sizes, send_sizes
        return wire.all_to_all(x, group=group, send_sizes=send_sizes, receive_sizes=receive_sizes)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return AllToAll.apply(dy, *ctx.back), None, None, None


def _gathered(shard: Tensor, group: dist.ProcessGroup, dim: int, sizes: Sequence[int] | None) -> list[int]:
    rank, p = place(group)
    require_dim(shard, dim)
    return gathered_sizes(shard, sizes, rank, p, dim)


def _scattered(x: Tensor, group: dist.ProcessGroup, dim: int, sizes: Sequence[int] | None) -> list[int]:
    _, p = place(group)
    require_dim(x, dim)
    return scattered_sizes(x, sizes, p, dim)
