"""One device's answers in NumPy: flat arrays and their pieces, AdamW, least squares, a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Options = dict[str, Any]


def piece_size(P: int, p: int) -> int:
    """n = ceil(P/p), the length of every rank's piece."""
    return -(-P // p)


def real_size(P: int, p: int, r: int) -> int:
    """How many elements of piece r are not padding."""
    n = piece_size(P, p)
    return min(n, max(0, P - r * n))


def cut(flat: np.ndarray, p: int) -> list[np.ndarray]:
    """The pieces [n] of a flat array [P], with zeros up to p n."""
    n = piece_size(len(flat), p)
    return list(np.pad(flat, (0, p * n - len(flat))).reshape(p, n))


def new_options(generator: np.random.Generator) -> Options:
    """AdamW's options. A large eps: with a small one Adam does not notice a gradient that is p times too large."""
    return {
        "lr": float(generator.uniform(0.1, 0.2)),
        "betas": (float(generator.uniform(0.5, 0.7)), float(generator.uniform(0.6, 0.8))),
        "eps": 0.5,
        "weight_decay": 0.1,
    }


@dataclass
class Adam:
    """The states of AdamW for some weights."""

    m: np.ndarray
    v: np.ndarray
    steps: int = 0

    @classmethod
    def new(cls, size: int) -> Adam:
        """Before the first step."""
        return cls(np.zeros(size), np.zeros(size))

    def step(self, weights: np.ndarray, gradient: np.ndarray, options: Options) -> np.ndarray:
        """The weights after one more step, as `torch.optim.AdamW` computes them."""
        first, second = options["betas"]
        self.steps += 1
        self.m = first * self.m + (1 - first) * gradient
        self.v = second * self.v + (1 - second) * gradient**2
        size = options["lr"] / (1 - first**self.steps)
        root = np.sqrt(self.v / (1 - second**self.steps)) + options["eps"]
        return weights * (1 - options["lr"] * options["weight_decay"]) - size * self.m / root


def least_squares(weights: np.ndarray, rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The gradient of the mean of (rows w - targets)^2 / 2. Shapes: [P], [m, P], [m] -> [P]."""
    return rows.T @ (rows @ weights - targets) / len(targets)


def forward(x: np.ndarray, flat: np.ndarray) -> np.ndarray:
    """tanh(x W^T + b) with W and b from a flat array: [B, D] -> [B, F]."""
    weight, bias = _parts(x, flat)
    return np.tanh(x @ weight.T + bias)


def backward(x: np.ndarray, flat: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of x and of the flat array."""
    weight, _ = _parts(x, flat)
    dz = dy * (1 - forward(x, flat) ** 2)
    return dz @ weight, np.concatenate([(dz.T @ x).ravel(), dz.sum(0)])


def _parts(x: np.ndarray, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    outputs = len(flat) // (x.shape[1] + 1)
    return flat[:-outputs].reshape(outputs, -1), flat[-outputs:]
