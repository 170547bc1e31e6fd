"""What the tests of the split vocabulary share: inputs, the one-device truth, and the comparison inside a rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tpcourse.dims import split_range

V, D = 11, 3  # 11 = 6 + 5 = 4 + 4 + 3 = 3 + 3 + 3 + 2: no p divides it, and every part has edges of its own
SHAPE = (3, 5)  # of the targets: room for every id, and four more
IGNORED = -100


def numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers, equal on every rank."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def every_id(*ignored: int, ignore_index: int = IGNORED) -> Tensor:
    """Targets of SHAPE in which every id is there, with these positions ignored."""
    targets = torch.tensor([*range(V), 0, V - 1, 4, 6])
    targets[list(ignored)] = ignore_index
    return targets.view(SHAPE)


def my_part(x: Tensor, group: dist.ProcessGroup, dim: int = -1) -> Tensor:
    """This rank's part of the whole along dim, as a leaf of its own."""
    start, end = split_range(x.shape[dim], dist.get_world_size(group), dist.get_rank(group))
    return x.narrow(dim, start, end - start).clone()


def whole_cross_entropy(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """torch's own, on logits [.., V]."""
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), **options)
    return loss.view(targets.shape) if options.get("reduction") == "none" else loss


def wrong_tensors(
    kernel: Callable[..., Tensor], group: dist.ProcessGroup, logits: Tensor, targets: Tensor, **options: Any
) -> list[str]:
    """Of loss and dlogits, the names of those in which `kernel` differs from one device by more than 1e-12."""
    whole = logits.clone().requires_grad_()
    mine = my_part(logits, group).requires_grad_()
    loss = whole_cross_entropy(whole, targets, **options)
    found = kernel(mine, targets, tp=group, V=logits.shape[-1], **options)
    dloss = numbers(7, *loss.shape)
    (expected_dx,) = torch.autograd.grad(loss, whole, dloss)
    (dx,) = torch.autograd.grad(found, mine, dloss)
    pairs = {"loss": (found, loss), "dlogits": (dx, my_part(expected_dx, group))}
    return [name for name, (a, b) in pairs.items() if a.shape != b.shape or not equal(a, b)]


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether each number agrees to 1e-12 of itself; those that are nearly 0 to 1e-15, and nan with nan."""
    return torch.allclose(a, b, rtol=1e-12, atol=1e-15, equal_nan=True)
