"""A GPT that `tp` splits, under optimizers that shard it once more over `dp`: what `tpcourse.zero` must be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tpcourse.block.gpt import GPT
from tpcourse.linear import sum_shared_heads
from tpcourse.sequence import sum_gradients
from tpcourse.zero import Share


def finish_some(model: GPT) -> Callable[[Sequence[nn.Parameter]], None]:
    """`finish_gradients` for some weights at a time: what `Zero1`, `Zero2` and `Zero3` call as `finish`.

    Traffic: as `finish_gradients`, but for each call that has a whole weight or a shared K/V head.
    Trap: each gradient once, and on all ranks of `tp` in the same order; `Zero2` and `Zero3` do so in backward.
    """
    layouts = {id(weight): model.shards[name].layout for name, weight in model.named_parameters()}

    def finish(weights: Sequence[nn.Parameter]) -> None:
        if model.here.sequence_parallel:
            sum_gradients([w.grad for w in weights if layouts[id(w)] == "whole"], tp=model.tp)
        shared = [w.grad for w in weights if layouts[id(w)] == "heads"]
        sum_shared_heads(shared, tp=model.tp, heads=model.here.heads, head_width=model.config.K)

    return finish


def counted_once(model: GPT) -> Share:
    """Which part of a weight this rank counts in the norm: what it is the first of `tp` to hold.

    For `clip` and `norm` of `tpcourse.zero`, with `tp=model.tp`: the norm is then that of one device, as
    `gradient_norm` has it. 1 or 0, or a mask of the weight's shape where rows of K/V heads are shared.
    Traffic: none.
    """

    def share(name: str, weight: nn.Parameter) -> float | Tensor:
        shard = model.shards[name]
        firsts = [piece.is_first for piece in shard.pieces]
        if all(firsts) or not any(firsts):
            return float(all(firsts))
        mask = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
        for view, first in zip(shard.views(mask), firsts, strict=True):
            view.fill_(first)
        return mask

    return share
