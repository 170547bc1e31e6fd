"""What the tests of ZeRO share: an awkward model, one device's answer, the ranks' answer."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache

import torch
import torch.distributed as dist
from data_cases import EXAMPLES, STEPS, examples, share, squares
from torch import nn

from tpcourse.zero import Zero1, Zero2, Zero3

STAGES = {1: Zero1, 2: Zero2, 3: Zero3}
SMALL = 0.001
"""MB: buckets of 125 float64 and more."""
MAX_NORM = 0.5
"""Small enough to clip in every step."""


class Part(nn.Module):
    """One layer: h + tanh(up(h)) down, where `down` is the weight of its own or of all layers."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, h):
        return h + self.down(torch.tanh(self.up(self.norm(h))))


class Awkward(nn.Module):
    """A matrix tied across two layers and one tied within a layer, a frozen layer, a buffer, no two sizes equal."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 7)
        self.parts = nn.ModuleList([Part(7, 6), Part(7, 7), Part(7, 6), Part(7, 9)])
        self.parts[2].down.weight = self.parts[0].down.weight
        self.parts[1].down.weight = self.parts[1].up.weight
        self.frozen, self.leave = nn.Linear(7, 7), nn.Linear(7, 3)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.rand(7))

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        for number, part in enumerate(self.parts):
            h = part(h)
            if number == 1:
                h = h + torch.tanh(self.frozen(h)) * self.scale
        return self.leave(h)


def new_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Awkward().double()


def groups_of(model):
    """Weight decay for matrices, another and another rate for the rest."""
    weights = list(model.parameters())
    return [
        {"params": [w for w in weights if w.dim() > 1], "weight_decay": 0.1},
        {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0, "lr": 0.02},
    ]


def state_of(model) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@cache
def on_one_device(steps: int = STEPS, max_norm: float | None = MAX_NORM):
    """The weights after some steps on whole batches, and the norms."""
    model = new_model()
    optimizer, norms = torch.optim.AdamW(groups_of(model), lr=0.01), []
    for step in range(steps):
        optimizer.zero_grad()
        squares(model, *examples(step)).div(EXAMPLES).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm or float("inf")).item())
        optimizer.step()
    return state_of(model), norms


def make(stage, model, group, **options):
    """A stage on the awkward model; a stage is a number or a class."""
    options = {"lr": 0.01, "bucket_mb": SMALL, "groups": groups_of(model)} | options
    return STAGES.get(stage, stage)(model, dp=group, **options)


def advance(zero, rank, group, steps=range(STEPS), micro_batches=1, syncs=False, max_norm=MAX_NORM):
    """Take steps; returns the norms."""
    p, norms = 1 if group is None else dist.get_world_size(group), []
    for step in steps:
        zero.zero_grad()
        batch = zip(*(part.tensor_split(micro_batches) for part in share(step, rank, p)), strict=True)
        for number, (x, y) in enumerate(batch, start=1):
            quiet = hasattr(zero, "no_sync") and not syncs and number < micro_batches
            with zero.no_sync() if quiet else nullcontext():
                (squares(zero.module, x, y) * p / EXAMPLES).backward()  # the average over ranks is the mean of all
        norms.append(zero.clip(max_norm or float("inf")).item())
        zero.step()
    return norms


def largest_error(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference of any element, relative to it."""
    assert got.keys() == expected.keys()
    return max(float(((got[name] - value) / value).abs().max()) for name, value in expected.items())
