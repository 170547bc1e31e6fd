"""What a training loop has to know of a model: its loss, and what its gradients need before the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tpcourse import block
from tpcourse.train.step import LossSum, loss_sum


def no_finish(model: nn.Module) -> None:
    """On one device gradients are complete after backward."""


def clip_whole(model: nn.Module, max_norm: float) -> Tensor:
    """Clipping where every rank holds the whole model. Returns the norm before. Shapes: -> []."""
    return nn.utils.clip_grad_norm_(model.parameters(), max_norm)


@dataclass(frozen=True)
class Parts:
    """Three functions of a model: the sum of the losses, the end of backward, and clipping.

    `loss_sum(model, x, y)` is a sum over targets, equal on all tp ranks; `finish(model)` adds up what ranks owe each
    other; `clip(model, max_norm)` clips by the norm of the whole gradient. The defaults suit a model on one device.
    """

    loss_sum: LossSum = loss_sum
    finish: Callable[[nn.Module], Any] = no_finish
    clip: Callable[[nn.Module, float], Any] = clip_whole


def split_loss_sum(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The sum of the cross-entropies over a split vocabulary. Shapes: [B, T], [B, T] -> []."""
    return model.loss(x, y, reduction="sum")


def parts_of(model: nn.Module) -> Parts:
    """The functions that belong to a model: those of `tpcourse.block` for its GPT, those of one device otherwise."""
    if isinstance(model, block.GPT):
        return Parts(split_loss_sum, block.finish_gradients, block.clip_gradients)
    return Parts()
