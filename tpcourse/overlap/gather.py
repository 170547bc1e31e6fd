"""All ranks' tokens times this rank's columns, with the gather under the product; and what that is backwards."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tpcourse.overlap.choice import chosen
from tpcourse.overlap.forms import FORMS, How, require_how
from tpcourse.overlap.inputs import as_autocast, require_column
from tpcourse.overlap.parts import Part
from tpcourse.overlap.products import added_weight_gradient, bias_gradient, write_product
from tpcourse.overlap.tokens import Tokens, tokens_of_piece


def gather_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    tp: dist.ProcessGroup | None,
    form: str = "auto",
    sequence_dim: int = 1,
    num_tokens: int | None = None,
    regather: bool = False,
    pieces: int | None = None,
) -> Tensor:
    """(x_0, ..., x_{p-1}) W_r^T + b_r: this rank's columns for the tokens of all ranks.

    A token's row of y needs that token alone, so the rows of this rank's tokens are multiplied while the others are
    on their way (Wang et al., ASPLOS 2023). dx_r = sum_s (piece r of dy_s W_s); dW_r = dy_r^T x and db_r stay here.
    `form`: `serial`, `ring` (send and receive), `peer` (GPUs that reach each other's memory), `popular` (hides
    nothing), or `auto`, which picks by the predicted times. In `pieces` forward's communication is cut.
    `regather` keeps only this rank's tokens for backward, as `peer` does.
    Shapes: x [B, T_r, D], weight [F/p, D], bias [F/p] -> [B, T, F/p]; tokens along `sequence_dim`, `num_tokens` = T
    where p does not divide it.
    Traffic: (p-1)/p n bytes forward, n those of [B, T, D]; as many backward, for the sum of dx, under the product for
    dW; and with regather as many again, under the product for dx. By form these are an all-gather and a
    reduce-scatter; p - 1 messages and (p - 1) pieces (`ring`); or copies that no ledger sees (`peer`).
    Raises: ValueError if shapes do not fit, or the form is not to be had here.
    Trap: hidden communication is not free. It takes memory bandwidth from the product, and split products are slower.
    In bfloat16 a `ring`'s dW is rounded once for each part of each sequence.
    """
    require_how(form, pieces)
    if tp is None:
        return F.linear(x, weight, bias)
    require_column(x, weight, bias, tp)
    x, weight, bias = as_autocast(x, weight, bias)
    tokens = tokens_of_piece(x, tp, sequence_dim, num_tokens)
    how = chosen("gather", How(form, pieces, regather), x, weight, tokens)
    return GatherProduct.apply(x, weight, bias, tokens, how)


class GatherProduct(Function):
    """`gather_product` for autograd: in backward dW does not need the scatter-sum, and its product hides it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tokens, how: How) -> Tensor:
        form, y, kept = FORMS[how.form], tokens.empty_block(x, weight.shape[0]), []
        ctx.regather = how.regather or form.lends
        for part in form.arriving(x, tokens, pieces=how.pieces, is_apart=True):
            with part.beside():
                write_product(part.block, weight.T, y[part.at], bias)
            kept += [] if ctx.regather else [part]
        blocks = [x] if ctx.regather else [part.block for part in kept]
        ctx.save_for_backward(weight, *(blocks if ctx.needs_input_grad[1] else ()))
        ctx.form, ctx.tokens, ctx.places = form, tokens, [part.at for part in kept]
        return tokens.unblock_all(y, x)  # [B, T, F/p]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        weight, *blocks = ctx.saved_tensors
        needs_dx, needs_dweight, needs_dbias, *_ = ctx.needs_input_grad
        form, tokens = ctx.form, ctx.tokens
        parts: Iterable[Part] = map(Part, ctx.places, blocks)
        if needs_dweight and ctx.regather:
            parts = form.arriving(blocks[0], tokens, with_whole=needs_dx)  # under the products for dx
        stays = cache(partial(weight_gradients, parts, tokens.block(dy), needs_dweight, needs_dbias))
        dx, between = None, stays if needs_dweight else None  # while dx travels
        if needs_dx:
            dx = form.scatter(dy, weight, tokens, between=between)  # [B, T_r, D]
        return dx, *stays(), None, None


def weight_gradients(
    parts: Iterable[Part], dy: Tensor, needs_dweight: bool, needs_dbias: bool
) -> tuple[Tensor | None, Tensor | None]:
    """dW = dy^T x, part by part as these come, and db. Shapes: [b, R, D], dy [b, R, F/p] -> [F/p, D] and [F/p]."""
    dweight = None
    for part in parts if needs_dweight else ():
        if part.is_summed:
            dweight = added_weight_gradient(dweight, dy[part.at], part.block)
    return dweight, bias_gradient(dy) if needs_dbias else None
