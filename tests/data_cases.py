"""What the tests of data parallelism share: an awkward model, one device's answer, the ranks' answer."""

from __future__ import annotations

from itertools import accumulate as running_sum

import torch
import torch.distributed as dist
from torch import nn

from tpcourse.data import DataParallel
from tpcourse.train import train_step

STEPS = 10
EXAMPLES = 11
SHARES = {1: [11], 2: [2, 9], 3: [0, 4, 7], 4: [5, 1, 2, 3]}
"""How many examples each rank has, by the number of ranks: none equal, one rank with none."""
SMALL = {"bucket_mb": 0.0004, "first_bucket_mb": 0.0001}
"""Buckets of 50 and, first, 12 float64."""


class Awkward(nn.Module):
    """One matrix in two layers, a layer that nobody uses, a frozen layer, a buffer, no two sizes equal."""

    def __init__(self, swaps: bool = False) -> None:
        super().__init__()
        self.enter, self.left, self.right = nn.Linear(5, 7), nn.Linear(7, 7), nn.Linear(7, 7)
        self.spare, self.frozen, self.leave = nn.Linear(7, 2), nn.Linear(7, 7), nn.Linear(7, 3)
        self.right.weight = self.left.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("seen", torch.rand(4))
        self.swaps = swaps

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        first, second = (self.right, self.left) if self.swaps else (self.left, self.right)
        a = torch.tanh(first(h))
        return self.leave(a * torch.tanh(second(self.frozen(h))))


def squares(model, x, y):
    """The sum of squared errors."""
    return ((model(x) - y) ** 2).sum()


def examples(step: int):
    """The whole batch of a step: x [11, 5], y [11, 3]."""
    generator = torch.Generator().manual_seed(100 + step)
    draw = lambda width: torch.randn(EXAMPLES, width, generator=generator, dtype=torch.float64)  # noqa: E731
    return draw(5), draw(3)


def share(step: int, rank: int, p: int, device: str = "cpu"):
    """What a rank sees of it."""
    end = list(running_sum(SHARES[p]))[rank]
    return [part[end - SHARES[p][rank] : end].to(device) for part in examples(step)]


def new_model(seed: int, device: str = "cpu", **options) -> nn.Module:
    torch.manual_seed(seed)
    return Awkward(**options).double().to(device)


def new_optimizer(model):
    """Weight decay moves a weight whose gradient is zero, and leaves one that has no gradient."""
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def state_of(model) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


def on_one_device(steps: int = STEPS) -> dict[str, torch.Tensor]:
    """The weights after some steps on whole batches."""
    model = new_model(0)
    optimizer = new_optimizer(model)
    for step in range(steps):
        train_step(model, optimizer, *examples(step), loss_sum=squares)
    return state_of(model)


def on_ranks(rank, group, make=DataParallel, micro_batches=1, device="cpu", **options) -> dict[str, torch.Tensor]:
    """The same on ranks that start from weights of their own and see their shares only."""
    p = dist.get_world_size(group)
    model = new_model(rank, device)
    parallel = make(model, dp=group, allow_unused=True, **(SMALL | options))
    optimizer = new_optimizer(model)
    for step in range(STEPS):
        batch = share(step, rank, p, device)
        train_step(model, optimizer, *batch, parallel=parallel, micro_batches=micro_batches, loss_sum=squares)
    return state_of(model)


def largest_error(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest relative error of any element of any tensor."""
    assert got.keys() == expected.keys()
    return max(float(((got[name] - value) / value).abs().max()) for name, value in expected.items())
