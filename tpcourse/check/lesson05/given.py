"""Arguments as plain arrays, whole or in pieces: the notebook needs no torch to make them, ranks get tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcourse.dims import split_sizes

Inputs = list[dict[str, Any]]


@dataclass(frozen=True)
class Given:
    """An array on its way to a rank; there it is a tensor, and one that asks for its gradient if `leaf`."""

    array: np.ndarray
    leaf: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        return build, (self.array, self.leaf)


def build(array: np.ndarray, leaf: bool) -> Any:
    """The tensor; what a rank gets when it unpickles a `Given`."""
    import torch

    from tpcourse.check import rank_side

    return torch.from_numpy(array.copy()).to(rank_side._device()).requires_grad_(leaf)


def whole(array: np.ndarray, p: int, leaf: bool = True) -> list[Given]:
    """The same array for every rank."""
    return [Given(array, leaf)] * p


def cut(array: np.ndarray, p: int, dim: int, leaf: bool = True) -> list[Given]:
    """A piece for each rank, as even as possible, the longer ones first."""
    ends = np.cumsum(split_sizes(array.shape[dim], p))[:-1]
    return [Given(np.ascontiguousarray(piece), leaf) for piece in np.split(array, ends, dim)]


def arguments(**shares: list[Any]) -> Inputs:
    """From each argument's pieces to each rank's arguments."""
    return [dict(zip(shares, values, strict=True)) for values in zip(*shares.values(), strict=True)]
