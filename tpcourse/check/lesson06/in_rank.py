"""Runs in a rank, for every exercise of lesson 06: the answer's kernels, its output, and all gradients."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tpcourse.check.borrowed import borrowed_kernel
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson05.in_rank import alone, settled
from tpcourse.check.lesson06.common import LAYERS


def note_borrowed(outcome: Outcome, answer: Any, *more: str) -> None:
    """Note the first kernel of these packages that the answer mentions."""
    outcome.borrowed = borrowed_kernel(answer, (*LAYERS, *more))


def with_gradients(y: Any, dy: Tensor, leaves: list[Tensor]) -> list[Any] | None:
    """The output of an answer, one tensor, and after its backward the gradient of each leaf; None if it has none."""
    if alone(y) is None:
        return None
    if y.requires_grad and y.shape == dy.shape:
        (y * dy).sum().backward()  # `y.backward(dy)` imports for seconds at first, and ranks wait for each other
    return [settled(y), *(settled(leaf.grad) for leaf in leaves)]
