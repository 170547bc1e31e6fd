"""A model as plain arrays: the notebook needs no torch to make one, and in a rank it arrives as a module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcourse.check.spec import nonzero

D_IN, D, D_OUT = 5, 4, 3
SHAPES = {
    "enter.weight": (D, D_IN),
    "enter.bias": (D,),
    "left.weight": (D, D),
    "left.bias": (D,),
    "right.bias": (D,),
    "leave.weight": (D_OUT, D),
    "leave.bias": (D_OUT,),
}
"""The weights in the module's order; `right.weight` is `left.weight`."""
TIED = "left.weight"
NUM_WEIGHTS = len(SHAPES)
NUM_BYTES = 8 * sum(int(np.prod(shape)) for shape in SHAPES.values())
TIED_BYTES = 8 * int(np.prod(SHAPES[TIED]))


@dataclass(frozen=True)
class Recipe:
    """Weights by name. `swaps` runs the right branch first, with the same result; `members` names the group in which
    backward leaves a mark in the ledger when it reaches the first layer.
    """

    weights: dict[str, np.ndarray]
    swaps: bool = False
    members: tuple[int, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return build, (self.weights, self.swaps, self.members)


def build(weights: dict[str, np.ndarray], swaps: bool, members: tuple[int, ...]) -> Any:
    """The module; what a rank gets when it unpickles a recipe."""
    from tpcourse.check.lesson04.nets import Net, rank_device

    return Net(weights, swaps, members).to(rank_device())


def new_weights(generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Random float64 weights, none near zero."""
    return {name: 0.5 * nonzero(generator, *shape) for name, shape in SHAPES.items()}


def new_batch(generator: np.random.Generator, examples: int) -> dict[str, np.ndarray]:
    """Random x [B, 5] and y [B, 3]."""
    return {"x": nonzero(generator, examples, D_IN), "y": nonzero(generator, examples, D_OUT)}
