"""One training step: forward, backward in micro-batches, gradients averaged once, and the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tpcourse.data import DataParallel, count_over_ranks
from tpcourse.dims import split_sizes

LossSum = Callable[[nn.Module, Tensor, Tensor], Tensor]


def loss_sum(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The sum, not the mean, of the cross-entropies of all tokens. Shapes: [B, T], [B, T] -> scalar."""
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    parallel: DataParallel | None = None,
    micro_batches: int = 1,
    loss_sum: LossSum = loss_sum,
) -> Tensor:
    """One step on this rank's share of a batch; all ranks end with the weights of one device with all of it.

    Returns the loss that backward saw; its average over the ranks is the mean over the whole batch's targets.
    Shapes: x [B_r, ...], y [B_r, ...] -> scalar. Shares may differ in length, and be empty.
    Traffic: that of `parallel` for one backward, and one all-reduce of one number, whatever `micro_batches` is.
    Raises: ValueError if micro_batches is below 1.
    """
    optimizer.zero_grad()
    loss = accumulate(model, x, y, parallel=parallel, micro_batches=micro_batches, loss_sum=loss_sum)
    optimizer.step()
    return loss


def accumulate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    parallel: DataParallel | None = None,
    micro_batches: int = 1,
    loss_sum: LossSum = loss_sum,
) -> Tensor:
    """The gradients of the mean loss, one micro-batch at a time; ranks communicate in the last one only.

    Each micro-batch adds its sum of losses, divided by the number of targets of the whole batch: so
    micro-batches need not be equally long. Otherwise as `train_step`.
    """
    if micro_batches < 1:
        raise ValueError(f"micro_batches = {micro_batches}: a batch is cut into 1 or more")
    p, count = 1, torch.tensor(y.numel(), device=y.device)
    if parallel is not None:
        p, count = parallel.p, count_over_ranks(y.numel(), dp=parallel.dp, device=y.device)
    sizes = split_sizes(len(x), micro_batches)
    mean = torch.zeros((), device=x.device)
    for number, (part, target) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
        last = number == micro_batches - 1
        with nullcontext() if last or parallel is None else parallel.no_sync():
            loss = loss_sum(model, part, target) * p / count
            loss.backward()
        mean = mean + loss.detach()
    return mean
