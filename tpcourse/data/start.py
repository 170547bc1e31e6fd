"""What ranks must agree on before gradients are averaged: equal weights, and how many examples there are."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tpcourse.wire.inputs import place, require_peer


def broadcast_module(module: nn.Module, *, dp: dist.ProcessGroup, root: int = 0) -> None:
    """Give every rank the parameters and buffers of rank `root` of the group, frozen ones too.

    Tensors of one dtype travel as one flat array; a tied weight travels once.
    Traffic: one broadcast for each dtype, all bytes from the root.
    Raises: ValueError if the root is not a rank of the group.
    Trap: averaged gradients keep weights equal only if they were equal at the start.
    """
    _, p = place(dp)
    require_peer(root, p)
    broadcast_tensors([*module.parameters(), *module.buffers()], dp=dp, root=root)


@torch.no_grad()
def broadcast_tensors(tensors: Iterable[Tensor], *, dp: dist.ProcessGroup, root: int = 0) -> None:
    """Write the root's values into these tensors on every rank; one broadcast for each dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    for alike in by_dtype.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])  # [n]
        dist.broadcast(flat, src=dist.get_global_rank(dp, root), group=dp)
        for tensor, piece in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
            tensor.copy_(piece.view_as(tensor))


def count_over_ranks(count: int, *, dp: dist.ProcessGroup, device: torch.device | None = None) -> Tensor:
    """N, the sum of the ranks' counts. Shapes: -> scalar, int64. Traffic: one all-reduce of one number."""
    place(dp)
    total = torch.tensor(count, device=device)
    dist.all_reduce(total, group=dp)
    return total


def mean_over_ranks(loss_sum: Tensor, count: int, *, dp: dist.ProcessGroup) -> Tensor:
    """The loss whose averaged gradients are those of the mean over all ranks' examples: p loss_sum / N.

    (1/p) sum_r p dS_r / N = d(sum_r S_r) / N, with S_r the *sum* of losses on rank r and N the sum of counts.
    The mean of the ranks' means is another number as soon as their counts differ.
    Shapes: scalar -> scalar; the average over ranks of what is returned is the mean loss.
    Traffic: one all-reduce of one number; no gradient flows through it.
    Trap: a rank without examples passes a sum over none, which is 0 and has a gradient; a mean over none is
    not a number.
    """
    _, p = place(dp)
    return loss_sum * p / count_over_ranks(count, dp=dp, device=loss_sum.device)
