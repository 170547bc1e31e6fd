"""The model of lesson 04's exercises, and what one device computes with it. Imports torch: load it late."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tpcourse.check import rank_side
from tpcourse.check.lesson04.recipe import D_IN, D_OUT, D


class Net(nn.Module):
    """Two branches with one matrix, multiplied. Shapes: [B, 5] -> [B, 3]."""

    def __init__(self, weights: dict[str, np.ndarray], swaps: bool = False, members: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.enter, self.left, self.right = nn.Linear(D_IN, D), nn.Linear(D, D), nn.Linear(D, D)
        self.leave = nn.Linear(D, D_OUT)
        self.right.weight = self.left.weight
        self.double()
        self.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in weights.items()}, strict=False)
        self._swaps, self._members = swaps, members

    def forward(self, x: Tensor) -> Tensor:
        h = Mark.apply(torch.tanh(self.enter(x)), self._members)
        if self._swaps:
            b = torch.tanh(self.right(h))
            a = torch.tanh(self.left(h))
        else:
            a = torch.tanh(self.left(h))
            b = torch.tanh(self.right(h))
        return self.leave(a * b)


class Mark(torch.autograd.Function):
    """Does nothing forward; in backward notes in the ledger that the first layer is all that is left."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, members: tuple[int, ...]) -> Tensor:
        ctx.members = members
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        if ctx.members:
            mark_backward(ctx.members)
        return dx, None


def mark_backward(members: tuple[int, ...]) -> None:
    """A barrier that nobody waits for: an event whose `function` is this one."""
    group = rank_side.namespace()[rank_side._STORE]["group", members]
    dist.barrier(group=group, async_op=True)


def rank_device() -> torch.device:
    """The device of the rank that this runs in."""
    return rank_side._device()


def gradients(weights: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Of the sum of squared errors over all elements of y, in the module's order, on the CPU."""
    net = Net(weights)
    ((net(torch.from_numpy(x)) - torch.from_numpy(y)) ** 2).sum().backward()
    return [np.zeros(tuple(w.shape)) if w.grad is None else w.grad.numpy() for w in net.parameters()]


def order_of_arrival(weights: dict[str, np.ndarray], swaps: bool) -> list[int]:
    """The weights' numbers in the order in which backward finishes their gradients."""
    net, order = Net(weights, swaps), []
    for number, weight in enumerate(net.parameters()):
        weight.register_post_accumulate_grad_hook(lambda _, number=number: order.append(number))
    net(torch.ones(1, D_IN, dtype=torch.float64)).sum().backward()
    return order
