"""Inputs as plain arrays: the notebook makes them without torch, and in a rank they arrive as tensors and modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcourse.check.spec import nonzero

D, K, F = 5, 6, 7
"""Width; width of a rank's one head; hidden width of a rank."""
WHOLE = {
    "norm1.scale": (D,),
    "attention_bias": (D,),
    "norm2.scale": (D,),
    "mlp_bias": (D,),
    "norm3.scale": (D,),
}
"""The weights that every rank holds whole."""
SPLIT = {
    "qkv.weight": (3 * K, D),
    "qkv.bias": (3 * K,),
    "out.weight": (D, K),
    "up.weight": (F, D),
    "up.bias": (F,),
    "down.weight": (D, F),
}
"""The weights of which every rank holds a part, with the shape of the part."""
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Shared:
    """An array that is the same on every rank; in a rank it arrives as a tensor."""

    array: np.ndarray

    def __reduce__(self) -> tuple[Any, ...]:
        return tensor, (self.array,)


@dataclass(frozen=True)
class Made:
    """Weights by name; in a rank they arrive as the module `kind` of `nets`."""

    kind: str
    weights: Weights

    def __reduce__(self) -> tuple[Any, ...]:
        return module, (self.kind, self.weights)


def tensor(array: np.ndarray) -> Any:
    """On the device of the rank that this runs in."""
    from tpcourse.check import rank_side

    return rank_side.to_tensors(array, rank_side._device())


def module(kind: str, weights: Weights) -> Any:
    """On the device of the rank that this runs in."""
    from tpcourse.check import rank_side
    from tpcourse.check.lesson06 import nets

    return getattr(nets, kind)(weights).to(rank_side._device())


def new_parts(generator: np.random.Generator, p: int) -> list[Weights]:
    """The weights of each rank: of some it has a part, the others are equal. Random float64, none near zero."""
    whole = {name: 0.5 * nonzero(generator, *shape) for name, shape in WHOLE.items()}
    return [{**whole, **{name: 0.5 * nonzero(generator, *shape) for name, shape in SPLIT.items()}} for _ in range(p)]


def joined(pieces: list[np.ndarray]) -> np.ndarray:
    """Pieces of the tokens, [B, T/p, D] each, as one [B, T, D]."""
    return np.concatenate(pieces, axis=1)
