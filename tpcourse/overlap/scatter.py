"""This rank's rows of the product, summed over the ranks, with the sum under the product; and that backwards."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tpcourse.overlap.choice import chosen
from tpcourse.overlap.forms import FORMS, How, require_how
from tpcourse.overlap.inputs import as_autocast, require_row
from tpcourse.overlap.products import added_weight_gradient, bias_gradient, write_product
from tpcourse.overlap.tokens import Tokens, tokens_of_whole


def product_scatter(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    tp: dist.ProcessGroup | None,
    form: str = "auto",
    sequence_dim: int = 1,
    pieces: int | None = None,
) -> Tensor:
    """Piece r of sum_s x_s W_s^T, + b: the sum of all ranks' products, for this rank's tokens.

    The rows of other ranks' tokens are multiplied first and leave while this rank's own are multiplied, which come
    last and add what has come. dx_r = dy W_r and dW_r = dy^T x_r, with dy of all tokens: a gather + product.
    `form` and `pieces` as in `gather_product`.
    Shapes: x [B, T, F/p], weight [D, F/p], bias [D], equal on all ranks -> [B, T_r, D], pieces by `split_sizes(T, p)`.
    Traffic: (p-1)/p n bytes each way, n those of [B, T, D]: one reduce-scatter forward and one all-gather backward, or
    2 (p - 1) and p - 1 messages (`ring`), or copies that no ledger sees (`peer`).
    Raises: ValueError if shapes do not fit, or the form is not to be had here.
    Trap: db is a partial sum, of this rank's tokens. In bfloat16 it is the library that says how often a sum in
    the product's epilogue is rounded: on an H200 the result is a reduce-scatter's to the bit, on a CPU it is not.
    """
    require_how(form, pieces)
    if tp is None:
        return F.linear(x, weight, bias)
    require_row(x, weight, bias, tp)
    x, weight, bias = as_autocast(x, weight, bias)
    tokens = tokens_of_whole(x, tp, sequence_dim)
    how = chosen("scatter", How(form, pieces), x, weight, tokens)
    return ProductScatter.apply(x, weight, bias, tokens, how)


class ProductScatter(Function):
    """`product_scatter` for autograd: the gather of dy is hidden under the products for dx, or for both."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tokens, how: How) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.tokens, ctx.how = tokens, how
        y = FORMS[how.form].scatter(x, weight.T, tokens, pieces=how.pieces)  # [B, T_r, D]
        return y if bias is None else y.add_(bias)  # before the sum it would count p times

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_dx, needs_dweight, needs_dbias, *_ = ctx.needs_input_grad
        tokens, how, dx, dweight = ctx.tokens, ctx.how, None, None
        needs_all = needs_dx or needs_dweight
        parts = FORMS[how.form].arriving(dy, tokens, with_whole=needs_dx and needs_dweight) if needs_all else iter(())
        dbias = bias_gradient(dy) if needs_dbias else None  # partial: only this rank's tokens
        if needs_dx:
            dx = tokens.empty_block(dy, weight.shape[1])  # [b, R, F/p]
        for part in parts:
            if dx is not None and part.is_new:
                write_product(part.block, weight, dx[part.at])
            if needs_dweight and part.is_summed:
                dweight = added_weight_gradient(dweight, part.block, tokens.block(x)[part.at])  # [D, F/p]
        return None if dx is None else tokens.unblock_all(dx, dy), dweight, dbias, None, None
