"""The two ends of a language model with the vocabulary V split over the ranks: embedding and cross-entropy.

Rank r holds the rows `vocab_range(V, tp)` of the embedding, and with them the logits of those words only. An id
that lies on another rank contributes 0 here, and a sum over the ranks finds it (Megatron-LM, arXiv:1909.08053,
section 3). The whole logits, [N, V] for N tokens, are never anywhere: what travels is a few numbers a token.

In Traffic, e counts the bytes of an element, N the tokens and p the ranks. Tokens and targets are equal on all
ranks. They are checked before anything is sent, for which a GPU is waited for. `tp=None` is one device: no call,
the plain operation of torch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tpcourse import wire
from tpcourse.conjugates import scatter_sum_gather, sum_copy
from tpcourse.dims import split_range
from tpcourse.wire.inputs import place

REDUCTIONS = ("mean", "sum", "none")


def vocab_range(V: int, tp: dist.ProcessGroup | None) -> tuple[int, int]:
    """First id of this rank's part of the vocabulary, and the id after its last.

    As `dims.split_range`: p need not divide V, and the longer parts come first.
    Raises: ValueError if V is less than p, on every rank.
    """
    rank, p = (0, 1) if tp is None else place(tp)
    start, end = split_range(V, p, rank)
    if p > V:
        raise ValueError(
            f"V = {V} leaves {p - V} of {p} ranks without a word: give V of {p} or more, or use fewer ranks"
        )
    return start, end


def vocab_embedding(
    tokens: Tensor, weight: Tensor, *, tp: dist.ProcessGroup | None, V: int, sequence_dim: int | None = None
) -> Tensor:
    """Row `tokens[i]` of the whole weight for each token; this rank's weight has the rows `vocab_range(V, tp)`.

    y = sum_r (weight_r[token - start_r], or 0 where the token is another rank's).
    Shapes: [..] and [V_r, D] -> [.., D]; with sequence_dim this rank's tokens: [B, T] -> [B, T_r, D] for 1, T_r
    by `split_sizes(T, p)`.
    Traffic: one all-reduce, 2(p-1)/p N D e bytes, forward; none backward. With sequence_dim one reduce-scatter
    forward, one all-gather backward, (p-1)/p N D e bytes each; uneven pieces count as p times the longest.
    Raises: ValueError for a token outside 0 .. V - 1, a weight of another length, or no such sequence_dim.
    Trap: a row of another rank must give 0, not the row that its clamped index finds here.
    """
    _require_length(weight, 0, V, tp, "weight")
    tokens = _checked(tokens, V, "tokens")
    if sequence_dim is not None and not 0 <= sequence_dim < tokens.dim():
        shape, last = list(tokens.shape), tokens.dim() - 1
        raise ValueError(f"sequence_dim = {sequence_dim} is not a dim of tokens of shape {shape}: use 0 to {last}")
    if tp is None:
        return F.embedding(tokens, weight)
    index, mine = _find(tokens, V, tp)
    rows = F.embedding(index, weight).masked_fill_(~mine.unsqueeze(-1), 0)  # [.., D], 0 where not mine
    if sequence_dim is None:
        return sum_copy(rows, group=tp)
    return scatter_sum_gather(rows, group=tp, dim=sequence_dim)


def vocab_cross_entropy(
    logits: Tensor, targets: Tensor, *, tp: dist.ProcessGroup | None, V: int,
    label_smoothing: float = 0.0, ignore_index: int = -100, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """`F.cross_entropy` of the whole logits, from each rank's part of them; equal on all ranks.

    loss = log sum_v exp x_v - x_target (arXiv:1909.08053, section 3). Smoothing s takes (1 - s) x_target + s/V
    sum_v x_v instead of x_target. The mean is over the targets that are not ignored: nan if there are none.
    Shapes: [.., V_r] and [..] -> [] or, for "none", [..]; float32 if the logits have 16 bits, else their dtype.
    Traffic: forward two all-reduces, of N maxima and of 2N sums (3N with smoothing): 2(p-1)/p 3N e bytes, or 4N,
    for e as the loss's; none backward. V is in no formula. Kept for backward: the logits [N, V_r] themselves.
    Raises: ValueError for a target outside 0 .. V - 1 that is not ignored, shapes that do not fit, an unknown
    reduction, or smoothing outside 0 .. 1.
    Trap: a change of the logits in place before backward; they are kept, not copied.
    """
    _require_length(logits, -1, V, tp, "logits")
    _require_options(logits, targets, label_smoothing, reduction)
    targets = _checked(targets, V, "targets", ignore_index)
    if tp is None:
        flat = logits.to(_wide(logits)).reshape(-1, V)
        options = {"label_smoothing": label_smoothing, "ignore_index": ignore_index, "reduction": reduction}
        loss = F.cross_entropy(flat, targets.reshape(-1), **options)
        return loss.view(targets.shape) if reduction == "none" else loss
    ignored = targets == ignore_index
    losses = TokenLosses.apply(logits, targets, tp, V, label_smoothing).masked_fill(ignored, 0)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / (~ignored).sum()


class TokenLosses(Function):
    """The cross-entropy of each token, [.., V_r] and [..] -> [..], for autograd."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, tp: dist.ProcessGroup, V: int, smoothing: float
    ) -> Tensor:
        index, mine = _find(targets, V, tp)
        largest = wire.all_reduce(logits.amax(-1).to(_wide(logits)), group=tp, op="max")  # [..]
        shifted = logits - largest.unsqueeze(-1)  # [.., V_r], at most 0: exp cannot overflow
        of_target = shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1).masked_fill(~mine, 0)
        of_all = [shifted.sum(-1)] if smoothing else []
        sum_exp = shifted.exp_().sum(-1)  # in place, so last: one [.., V_r] is enough
        sums = wire.all_reduce(torch.stack([sum_exp, of_target, *of_all]), group=tp)  # [2 or 3, ..]
        sum_exp, of_target, *of_all = sums
        ctx.save_for_backward(logits, targets, largest, sum_exp)
        ctx.options = tp, V, smoothing
        loss = sum_exp.log() - (1 - smoothing) * of_target
        return loss - smoothing / V * of_all[0] if smoothing else loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        """dx_v = (softmax_v - (1 - s) [v is the target] - s/V) dloss: all of it is here, nothing is sent."""
        logits, targets, largest, sum_exp = ctx.saved_tensors
        tp, V, smoothing = ctx.options
        index, mine = _find(targets, V, tp)
        dx = (logits - largest.unsqueeze(-1)).exp_()
        dx.mul_((dloss / sum_exp).unsqueeze(-1))  # softmax times dloss
        if smoothing:
            dx.sub_((smoothing / V * dloss).unsqueeze(-1))
        at_target = ((smoothing - 1) * dloss).masked_fill(~mine, 0)
        dx.scatter_add_(-1, index.unsqueeze(-1), at_target.unsqueeze(-1))
        return dx.to(logits.dtype), None, None, None, None


def _find(ids: Tensor, V: int, tp: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Where each id is in this rank's part (0 where it is not), and whether it is."""
    start, end = vocab_range(V, tp)
    mine = (ids >= start) & (ids < end)
    return (ids - start).masked_fill(~mine, 0), mine


def _wide(x: Tensor) -> torch.dtype:
    """The dtype to calculate in: 16 bits are too few for a sum over a vocabulary."""
    return torch.promote_types(x.dtype, torch.float32)


def _checked(ids: Tensor, V: int, name: str, ignore_index: int | None = None) -> Tensor:
    """The ids as int64. Every rank has the same ones, so every rank raises, and nothing has to be sent."""
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise ValueError(f"{name} are {ids.dtype}, but must be whole numbers: one id of 0 to {V - 1} for each token")
    ids = ids.long()
    wrong = (ids < 0) | (ids >= V)
    if ignore_index is not None:
        wrong &= ids != ignore_index
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        also = "" if ignore_index is None else f", or ignore_index = {ignore_index}"
        raise ValueError(f"{name}{where} = {ids[wrong][0].item()} is not in a vocabulary of V = {V}: "
                         f"use 0 to {V - 1}{also}")  # fmt: skip
    return ids


def _require_length(x: Tensor, dim: int, V: int, tp: dist.ProcessGroup | None, name: str) -> None:
    start, end = vocab_range(V, tp)
    if x.dim() == 0 or x.shape[dim] != end - start:
        raise ValueError(
            f"{name} of shape {list(x.shape)}: dim {dim} must be the {end - start} words {start} to {end - 1} that "
            f"this rank holds of V = {V}: cut it by vocab_range(V, tp)"
        )


def _require_options(logits: Tensor, targets: Tensor, label_smoothing: float, reduction: str) -> None:
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"targets of shape {list(targets.shape)} do not fit logits of shape {list(logits.shape)}: "
            f"one target for each token, {list(logits.shape[:-1])}"
        )
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction = {reduction!r} is unknown: use one of {', '.join(REDUCTIONS)}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing = {label_smoothing} is not a share: use 0 to 1")
