"""The ways to train that `tpcourse bench zero` compares: our stages, and torch's. Each trains the same model.

Bfloat16 weights in forward and backward, float32 where the optimizer steps, gradients averaged in bfloat16, the fused
AdamW: so 16 bytes a weight in all of them, before they are shared out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from tpcourse import memory
from tpcourse.memory import Held
from tpcourse.train import GPT
from tpcourse.zero import Zero1, Zero2, Zero3

NARROW = torch.bfloat16
OPTIONS: dict[str, Any] = {"lr": 1e-5, "fused": True}


@dataclass(frozen=True)
class Sizes:
    """The model (V is 256 bytes), a rank's sequences, and how many steps a visit warms up and times."""

    D: int
    H: int
    L: int
    T: int
    sequences: int
    warm_up: int
    timed: int


@dataclass
class Run:
    """A model that trains: its forward, what steps it, the bytes that it holds, and what it needs to be let go."""

    model: nn.Module
    optimizer: Any
    held: Callable[[], Held]
    end: Callable[[], object] = lambda: None

    def backward(self, x: Tensor, y: Tensor) -> Tensor:
        """Drop the old gradients and make new ones; the loss. Shapes: [B, T], [B, T] -> scalar."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x).flatten(0, 1).float(), y.flatten())
        loss.backward()
        return loss.detach()


Make = Callable[[Sizes, torch.device], Run]


def new_model(sizes: Sizes, device: torch.device) -> GPT:
    """The same bfloat16 weights in every variant and on every rank."""
    torch.manual_seed(0)
    with torch.device(device):
        model = GPT(T=sizes.T, D=sizes.D, H=sizes.H, L=sizes.L)
    return model.to(NARROW)


def ours(stage: type[Zero1], sizes: Sizes, device: torch.device, **options: Any) -> Run:
    """One of our stages over the world; stage 3 has a layer for each block, as `sharded` has."""
    return ours_over(dist.group.WORLD, stage, sizes, device, **options)


def ours_over(dp: Any, stage: type[Zero1], sizes: Sizes, device: torch.device, **options: Any) -> Run:
    """One of our stages over a group, or None: one device's, which sends nothing."""
    model = new_model(sizes, device)
    zero = stage(model, dp=dp, **OPTIONS, **options)
    remove = zero.remove if isinstance(zero, Zero2) else Run.end
    return Run(model, zero, lambda: zero.held, remove)  # Trap: a weight's own hook keeps the weight


def ddp(sizes: Sizes, device: torch.device) -> Run:
    """DistributedDataParallel, every rank with all states."""
    model = _all_reduced(new_model(sizes, device))
    optimizer = MasterAdamW(model.parameters(), **OPTIONS)
    return Run(model, optimizer, lambda: memory.held(model, optimizer.inner))


def redundancy(sizes: Sizes, device: torch.device) -> Run:
    """ZeroRedundancyOptimizer under DistributedDataParallel: torch's stage 1."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = _all_reduced(new_model(sizes, device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), MasterAdamW, parameters_as_bucket_view=True, **OPTIONS)
    return Run(model, optimizer, lambda: memory.held(model, optimizer.optim.inner))


def sharded(sizes: Sizes, device: torch.device) -> Run:
    """Torch's stage 3, a group for each block: float32 shards, gathered as bfloat16.

    Without `reduce_dtype` gradients travel as backward made them, in bfloat16, as ours and DDP's do.
    """
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = new_model(sizes, device).float()
    how = {"mesh": DeviceMesh.from_group(dist.group.WORLD, device.type), "mp_policy": MixedPrecisionPolicy(NARROW)}
    for block in model.blocks:
        fully_shard(block, **how)
    fully_shard(model, **how)
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    return Run(model, optimizer, lambda: memory.held(model, optimizer))


def _all_reduced(model: nn.Module) -> nn.Module:
    """Torch's DDP in the form that needs least memory: gradients are views of its buckets."""
    from torch.nn.parallel import DistributedDataParallel

    device = next(model.parameters()).device
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


class MasterAdamW(torch.optim.Optimizer):
    """AdamW on float32 copies of narrower weights, for torch's DDP, in few kernels; `inner` has copies and moments."""

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, options)
        self.weights = [weight for group in self.param_groups for weight in group["params"]]
        self.masters = [weight.detach().float() for weight in self.weights]
        self.inner = torch.optim.AdamW(self.masters, **options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Widen the gradients, step the copies, round them to the weights."""
        wide = [torch.empty_like(master) for master in self.masters]
        torch._foreach_copy_(wide, [weight.grad for weight in self.weights])
        for master, gradient in zip(self.masters, wide, strict=True):
            master.grad = gradient
        self.inner.step()
        self.inner.zero_grad()
        torch._foreach_copy_(self.weights, self.masters)


VARIANTS: dict[str, tuple[str, Make]] = {
    "DDP": ("torch's", ddp),
    "ZeroRedundancyOptimizer": ("torch's", redundancy),
    "fully_shard": ("torch's", sharded),
    "stage 1": ("ours", partial(ours, Zero1)),
    "stage 2": ("ours", partial(ours, Zero2)),
    "stage 3": ("ours", partial(ours, Zero3)),
    "stage 3, no prefetch": ("ours", partial(ours, Zero3, prefetch=False)),
}
"""Name -> whose, and what makes it."""
