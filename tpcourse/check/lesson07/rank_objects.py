"""What the exercises of lesson 07 are given in a rank: a gradient, parameters, layers, files. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Gradient:
    """`gradient(weights)`: that of this rank's examples, the mean of (rows w - targets)^2 / 2. Shapes: [P] -> [P]."""

    def __init__(self, rows: Tensor, targets: Tensor) -> None:
        self.rows, self.targets = rows, targets

    def __call__(self, weights: Tensor) -> Tensor:
        """A new tensor in every call."""
        P = self.rows.shape[1]
        if weights.shape != (P,):
            raise ValueError(f"gradient got weights of shape {list(weights.shape)}; give it the {P} without padding")
        return self.rows.T @ (self.rows @ weights.detach() - self.targets) / len(self.targets)


def tensor(array: Tensor) -> Tensor:
    """An array that is the same on every rank, or that has zeros in its padding."""
    return array


def tensors(arrays: list[Tensor]) -> list[Tensor]:
    """Several of them."""
    return arrays


def parameters(weights: list[Tensor], gradients: list[Tensor | None]) -> list[nn.Parameter]:
    """Parameters with their gradients, as backward leaves them."""
    found = [nn.Parameter(weight) for weight in weights]
    for parameter, gradient in zip(found, gradients, strict=True):
        parameter.grad = gradient
    return found


class Layer:
    """tanh(x W^T + b), with its `size` weights flat, from whoever calls it; `watch` hears of each call first."""

    def __init__(self, number: int, inputs: int, outputs: int) -> None:
        self.number, self.inputs, self.outputs = number, inputs, outputs
        self.size = outputs * (inputs + 1)
        self.watch: Callable[[str, int], None] = lambda kind, number: None

    def forward(self, x: Tensor, flat: Tensor) -> Tensor:
        """[B, D], [size] -> [B, F]."""
        self.watch("forward", self.number)
        weight, bias = self._parts(flat)
        return torch.tanh(x @ weight.T + bias)

    def backward(self, x: Tensor, flat: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of x and flat: [B, D], [size], [B, F] -> [B, D], [size]."""
        self.watch("backward", self.number)
        weight, bias = self._parts(flat)
        dz = dy * (1 - torch.tanh(x @ weight.T + bias).square())
        return dz @ weight, torch.cat([(dz.T @ x).flatten(), dz.sum(0)])

    def _parts(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        if flat.shape != (self.size,):
            raise ValueError(
                f"layer {self.number} got weights of shape {list(flat.shape)}; it has {self.size}, without padding"
            )
        return flat[: -self.outputs].view(self.outputs, self.inputs), flat[-self.outputs :]


class Files:
    """`read(j)`: what rank j of the ranks that saved wrote, read anew in every call; `asked` notes which."""

    def __init__(self, files: list[dict[str, Any]]) -> None:
        self._files = files
        self.asked: list[int] = []

    def __call__(self, number: int) -> dict[str, Tensor]:
        """weight, exp_avg and exp_avg_sq, [n] each, and the number of steps."""
        if not 0 <= number < len(self._files):
            raise ValueError(f"there is no file {number}: ranks 0 to {len(self._files) - 1} saved")
        self.asked.append(number)
        return {name: tensor.clone() for name, tensor in self._files[number].items()}
