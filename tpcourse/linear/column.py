"""The product with the columns split: each rank computes some of the outputs from the whole input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tpcourse.conjugates import gather_split
from tpcourse.overlap import gather_product
from tpcourse.overlap.inputs import as_autocast, require_column, require_whole
from tpcourse.overlap.products import bias_gradient, input_gradient, product, weight_gradient


def column_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    tp: dist.ProcessGroup | None,
    sequence_dim: int | None = None,
    num_tokens: int | None = None,
    regather: bool = False,
    overlap: str = "serial",
) -> Tensor:
    """x W_r^T + b_r: this rank's columns of the product, from an x that is whole in D.

    Each rank sends back a gradient of the same x, so dx = sum_r dy_r W_r; dW_r = dy_r^T x and db_r stay here
    (arXiv:1909.08053, section 3). With sequence_dim, x is this rank's tokens and is gathered first
    (arXiv:2205.05198, section 4.2.2); regather=True keeps only the piece, and gathers again in backward.
    Shapes: x [.., D], weight [F/p, D], bias [F/p] -> [.., F/p]; for sequence_dim=1 x [B, T_r, D] -> [B, T, F/p].
    `num_tokens` = T where p does not divide it (pieces by `split_sizes`); without it all are as long as this one.
    `overlap`: how the gather of tokens and the product go together, a form of `tpcourse.overlap.gather_product`.
    Traffic: none forward; one all-reduce, 2(p-1)/p n bytes (n those of x), backward, under the product for dW.
    With sequence_dim: one all-gather forward; one reduce-scatter backward, under the product for dW, and with
    regather one all-gather more, under the product for dx; (p-1)/p n bytes each, n those of [B, T, D].
    Raises: ValueError if shapes do not fit, or regather or overlap have nothing to gather.
    Trap: all ranks wait for the gradient of x, so x must require one on all ranks or on none.
    """
    if tp is None:
        return F.linear(x, weight, bias)
    if sequence_dim is not None:
        return gather_product(
            x, weight, bias, tp=tp, form=overlap, sequence_dim=sequence_dim, num_tokens=num_tokens, regather=regather
        )
    require_whole(regather, overlap)
    require_column(x, weight, bias, tp)
    return Column.apply(*as_autocast(x, weight, bias), tp)


class Column(Function):
    """`column_linear` of a replicated x for autograd: nothing forward, a sum backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tp: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.tp = tp
        return product(x, weight, bias)  # [.., F/p]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_dx, needs_dweight, needs_dbias, _ = ctx.needs_input_grad
        dx = summing = None
        if needs_dx:
            dx = input_gradient(dy, weight)  # [.., D], partial: only this rank's columns
            summing = dist.all_reduce(dx, group=ctx.tp, async_op=True)
        dweight = weight_gradient(dy, x) if needs_dweight else None  # [F/p, D], while dx travels
        dbias = bias_gradient(dy) if needs_dbias else None
        if summing is not None:
            summing.wait()
        return dx, dweight, dbias, None


def gather_columns(
    y: Tensor, *, tp: dist.ProcessGroup | None, dim: int = -1, sizes: Sequence[int] | None = None
) -> Tensor:
    """All ranks' columns on every rank: for the end of a model, where the whole output is wanted.

    y = (y_0, ..., y_{p-1}), so dy_r = piece r of dy.
    Shapes: [.., F/p] -> [.., F] along dim; uneven pieces need all their `sizes`.
    Traffic: one all-gather, (p-1)/p n bytes, forward; none backward.
    Raises: ValueError if the sizes do not fit.
    Trap: between `column_linear` and `row_linear` it only costs: row_linear takes the columns as they are.
    """
    return y if tp is None else gather_split(y, group=tp, dim=dim, sizes=sizes)
