"""The product with the rows split: each rank computes part of every output from some of the inputs."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tpcourse.overlap import product_scatter
from tpcourse.overlap.inputs import as_autocast, require_row, require_whole
from tpcourse.overlap.products import bias_gradient, input_gradient, product, weight_gradient


def row_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    tp: dist.ProcessGroup | None,
    sequence_dim: int | None = None,
    overlap: str = "serial",
) -> Tensor:
    """sum_r x_r W_r^T + b: each rank adds what its part of the inputs gives, and b comes once, after the sum.

    y is one tensor, so dx_r = dy W_r, dW_r = dy^T x_r and db = dy summed over tokens need nobody else
    (arXiv:1909.08053, section 3). With sequence_dim each rank receives the sum of its own tokens only
    (arXiv:2205.05198, section 4.2.2).
    Shapes: x [.., F/p], weight [D, F/p], bias [D], equal on all ranks -> [.., D]; for sequence_dim=1
    x [B, T, F/p] -> [B, T_r, D], pieces by `split_sizes(T, p)`.
    `overlap`: how the product and the sum of tokens go together, a form of `tpcourse.overlap.product_scatter`.
    Traffic: one all-reduce, 2(p-1)/p n bytes (n those of [.., D]), forward; none backward. With sequence_dim: one
    reduce-scatter forward, one all-gather backward, (p-1)/p n bytes each.
    Raises: ValueError if shapes do not fit, or overlap has nothing to scatter.
    Trap: with sequence_dim, db is a partial sum, of this rank's tokens; `tpcourse.sequence.sum_gradients` adds it up.
    """
    if tp is None:
        return F.linear(x, weight, bias)
    if sequence_dim is not None:
        return product_scatter(x, weight, bias, tp=tp, form=overlap, sequence_dim=sequence_dim)
    require_whole(False, overlap)
    require_row(x, weight, bias, tp)
    return Row.apply(*as_autocast(x, weight, bias), tp)


class Row(Function):
    """`row_linear` to a replicated y for autograd: a sum forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tp: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        y = product(x, weight)  # [.., D], partial: only this rank's rows
        dist.all_reduce(y, group=tp)
        return y if bias is None else y.add_(bias)  # before the sum it would count p times

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_dx, needs_dweight, needs_dbias, _ = ctx.needs_input_grad
        dx = input_gradient(dy, weight) if needs_dx else None  # [.., F/p]
        dweight = weight_gradient(dy, x) if needs_dweight else None  # [D, F/p]
        dbias = bias_gradient(dy) if needs_dbias else None
        return dx, dweight, dbias, None
