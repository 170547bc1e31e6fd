"""After backward: the gradients that are still partial, and the norm of all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tpcourse.block.gpt import GPT
from tpcourse.linear import sum_shared_heads
from tpcourse.sequence import sum_gradients


def finish_gradients(model: GPT) -> None:
    """Add up over the ranks the gradients that one rank alone cannot know. Once a step, after the last backward.

    With sequence parallelism a whole weight, such as a norm's scale, saw only this rank's tokens; a K/V head that
    lies on several ranks saw only the query heads of each. All other gradients are complete.
    Traffic: one all-reduce of all whole weights with sequence parallelism, one of all K/V heads if there are fewer
    than ranks; none otherwise.
    Trap: forgotten, the loss still falls, and ranks drift apart. Called twice, these gradients are too large.
    """
    if model.tp is None:
        return
    if model.here.sequence_parallel:
        sum_gradients(_gradients(model, "whole"), tp=model.tp)
    if model.here.heads.copies > 1:
        sum_shared_heads(
            _gradients(model, "heads"), tp=model.tp, heads=model.here.heads, head_width=model.config.K
        )


@torch.no_grad()
def gradient_norm(model: GPT) -> Tensor:
    """The norm of the one-device gradient, equal on all ranks: whole weights and shared heads count once.

    sqrt(sum_r sum of squares of the pieces that rank r is the first to hold). Shapes: -> [].
    Traffic: one all-reduce of one number.
    Trap: the norm of a rank's own gradients is too small, and the sum of all ranks' squares counts whole weights p
    times. Call `finish_gradients` first.
    """
    exact = torch.promote_types(model.tokens.weight.dtype, torch.float32)
    norms = [torch.linalg.vector_norm(view, dtype=exact) for view in _counted_here(model)]
    square = torch.stack(norms).square().sum() if norms else torch.zeros((), dtype=exact, device=_device(model))
    if model.tp is not None:
        dist.all_reduce(square, group=model.tp)
    return square.sqrt()


def clip_gradients(model: GPT, max_norm: float) -> Tensor:
    """Scale all gradients down if their global norm is above `max_norm`, as torch's `clip_grad_norm_`.

    g <- g min(1, max_norm / (norm + 1e-6)). Returns the norm before. Shapes: -> [].
    Traffic: that of `gradient_norm`.
    Raises: ValueError unless max_norm is above 0.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm = {max_norm} would erase or turn the gradients: use a number above 0")
    norm = gradient_norm(model)
    nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return norm


def _gradients(model: GPT, layout: str) -> list[Tensor]:
    named = model.named_parameters()
    return [w.grad for name, w in named if model.shards[name].layout == layout and w.grad is not None]


def _counted_here(model: GPT) -> list[Tensor]:
    """Views of the gradients, without what an earlier rank holds too."""
    views = []
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            shard = model.shards[name]
            pairs = zip(shard.pieces, shard.views(weight.grad), strict=True)
            views += [view for piece, view in pairs if piece.is_first]
    return views


def _device(model: GPT) -> torch.device:
    return model.tokens.weight.device
