"""How a tensor of the one-device program lives on the ranks: whole on each, split over them, or another one on each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcourse.dims import split_sizes


@dataclass(frozen=True)
class Layout:
    """A shape on one device and what each rank holds of it; `dim` only for a split."""

    kind: str
    shape: tuple[int, ...]
    dim: int = 0

    def draw(self, generator: np.random.Generator, p: int) -> Any:
        """Random float64 values, none near zero; a list of p arrays where each rank has another one."""
        count = p if self.kind == "each" else 1
        signs = generator.choice([-1.0, 1.0], (count, *self.shape))
        values = generator.uniform(0.5, 1.5, (count, *self.shape)) * signs
        return list(values) if self.kind == "each" else values[0]

    def on_ranks(self, value: Any, p: int) -> list[np.ndarray]:
        """What each rank holds of the one-device value."""
        if self.kind == "each":
            return list(value)
        if self.kind == "whole":
            return [value] * p
        ends = np.cumsum(split_sizes(value.shape[self.dim], p))[:-1]
        return [np.ascontiguousarray(piece) for piece in np.split(value, ends, self.dim)]


def whole(*shape: int) -> Layout:
    """Every rank holds the same whole tensor; so does its gradient."""
    return Layout("whole", shape)


def split(*shape: int, dim: int) -> Layout:
    """Rank r holds piece r of the tensor along `dim`, as even as possible; `shape` is the whole's."""
    if shape and not -len(shape) <= dim < len(shape):
        raise ValueError(f"dim = {dim} is not one of a tensor of {len(shape)} dims: use 0 to {len(shape) - 1}")
    return Layout("split", shape, dim)


def each(*shape: int) -> Layout:
    """Every rank holds a tensor of its own; the one-device function gets, and returns, the list of all of them."""
    return Layout("each", shape)
