"""The norm of a gradient of which every rank has a piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tpcourse.zero.calls import sum_over
from tpcourse.zero.flat import Flat

Share = Callable[[str, nn.Parameter], float | Tensor]
"""(name, weight) -> which part of its squares this rank counts: 1 for a weight that `tp` splits, 1/p for one that its
p ranks hold whole, or a tensor of the weight's shape for one of which some rows are held twice."""


@torch.no_grad()
def global_norm(
    flats: Sequence[Flat], *, dp: dist.ProcessGroup | None, tp: dist.ProcessGroup | None, share: Share | None
) -> Tensor:
    """sqrt(sum over dp, and over tp, of share g^2). Padding does not count. Shapes: -> [].

    Traffic: one all-reduce of one number over dp, and one over tp.
    Trap: without `share` a weight that tp's ranks hold whole counts once for each.
    """
    wide = torch.promote_types(flats[0].piece.dtype, torch.float32)
    square = torch.zeros((), dtype=wide, device=flats[0].piece.device)
    for flat in flats:
        if flat.gradient is not None:
            square += _square(flat, flat.gradient, share, wide)
    return sum_over(square, dp, tp).sqrt()


def _square(flat: Flat, gradient: Tensor, share: Share | None, wide: torch.dtype) -> Tensor:
    total = torch.zeros((), dtype=wide, device=gradient.device)
    for name, weight, there, here in flat.spans():
        part = 1.0 if share is None else share(name, weight)
        if isinstance(part, Tensor):
            total += (gradient[here].to(wide).square() * part.reshape(-1)[there]).sum()
        else:
            total += part * torch.linalg.vector_norm(gradient[here], dtype=wide).square()
    return total


@torch.no_grad()
def scale_to(flats: Sequence[Flat], max_norm: float, norm: Tensor) -> None:
    """g <- g min(1, max_norm / (norm + 1e-6)). Raises: ValueError unless max_norm is above 0."""
    if not max_norm > 0:
        raise ValueError(f"max_norm = {max_norm} would erase or turn the gradients: use a number above 0")
    gradients = [flat.gradient for flat in flats if flat.gradient is not None]
    if gradients:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
