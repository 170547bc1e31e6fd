"""All ranks' tokens times this rank's columns, with the gather under the product; and what that is backwards."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tpcourse.overlap.choice import chosen
from tpcourse.overlap.forms import FORMS, How, require_how
from tpcourse.overlap.inputs import as_autocast, require_column
from tpcourse.overlap.products import bias_gradient, input_gradient, weight_gradient
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
    nothing), or `auto`, which picks by the predicted times. `regather` keeps only the piece for backward.
    Shapes: x [B, T_r, D], weight [F/p, D], bias [F/p] -> [B, T, F/p]; tokens along `sequence_dim`, `num_tokens` = T
    where p does not divide it.
    Traffic: (p-1)/p n bytes forward, n those of [B, T, D]: one all-gather, or p - 1 messages, or copies that no ledger
    sees (`peer`). Backward one reduce-scatter, under the product for dW; with regather one all-gather more, under
    the product for dx.
    Raises: ValueError if shapes do not fit, or the form is not to be had here.
    Trap: hidden communication is not free. It takes memory bandwidth from the product, and split products are slower.
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
    """`gather_product` for autograd: in backward nothing depends on the scatter-sum, so the product for dW hides it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tokens, how: How) -> Tensor:
        needs_whole = ctx.needs_input_grad[1] and not how.regather
        y, whole = FORMS[how.form].gather(x, weight.T, bias, tokens, keep=needs_whole, pieces=how.pieces)
        kept = x if how.regather else whole
        ctx.save_for_backward(kept if ctx.needs_input_grad[1] else None, weight)
        ctx.tokens, ctx.how = tokens, how
        return y  # [B, T, F/p]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        kept, weight = ctx.saved_tensors
        needs_dx, needs_dweight, needs_dbias, *_ = ctx.needs_input_grad
        if not needs_dweight:  # no product to hide the scatter-sum under but its own
            dx = FORMS[ctx.how.form].scatter(dy, weight, ctx.tokens, pieces=ctx.how.pieces) if needs_dx else None
            return dx, None, bias_gradient(dy) if needs_dbias else None, None, None
        gathering = ctx.tokens.gather(kept, async_op=True) if ctx.how.regather else None
        scattering = None
        if needs_dx:
            dx = input_gradient(dy, weight)  # [B, T, D], partial: only this rank's columns
            scattering = ctx.tokens.scatter_sum(dx, async_op=True)
        whole = kept if gathering is None else gathering.wait()
        dweight = weight_gradient(dy, whole)  # [F/p, D], while dx travels
        dbias = bias_gradient(dy) if needs_dbias else None
        dx = None if scattering is None else scattering.wait()  # [B, T_r, D]
        return dx, dweight, dbias, None, None
