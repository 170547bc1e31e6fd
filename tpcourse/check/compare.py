"""Comparison of results with the one-device answer, on NumPy arrays (the notebook's kernel need not import torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

TOLERANCE = 1e-9


class Named(list[Any]):
    """Expected results with the names that feedback calls them by: y, then dx and other gradients."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values.values())
        self.names = tuple(values)


@dataclass(frozen=True)
class Strange:
    """What an answer returned and a rank does not send on, in words."""

    kind: str


@dataclass(frozen=True)
class Difference:
    """Where and by how much a result differs: a sentence part such as "largest relative error 0.7 at element 3"."""

    text: str
    size: float = float("inf")

    def __str__(self) -> str:
        return self.text


def first_difference(got: Any, expected: Any, tolerance: float = TOLERANCE) -> Difference | None:
    """Compare a result (array, or list of arrays) with the expected one; None when they agree.

    The size is max |got - expected| / max |expected|.
    Trap: not-a-number is never right, also where the expected value is not-a-number.
    """
    if got is None:
        return Difference("nothing was returned")
    if isinstance(expected, list | tuple):
        return _list_difference(got, expected, tolerance)
    if not isinstance(got, np.ndarray):
        return Difference(f"a tensor was expected, not {_kind(got)}")
    if got.shape != expected.shape:
        return Difference(f"shape {list(got.shape)} instead of {list(expected.shape)}")
    return _value_difference(got, expected, tolerance)


def size_of(difference: Difference | None) -> float:
    """Its largest relative error; 0 if there is none."""
    return difference.size if difference else 0.0


def in_words(value: Any) -> str:
    """ "a tuple of 2", "a dict of 1", "a NumPy array", "a float": what came where a tensor was expected."""
    kind = "NumPy array" if isinstance(value, np.ndarray) else type(value).__name__
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind}" + (f" of {len(value)}" if isinstance(value, list | tuple | dict | set) else "")


def agree(got: Any, expected: Any) -> bool:
    """Whether two results agree in form, shape and value."""
    return first_difference(got, expected) is None


def _list_difference(got: Any, expected: list[Any] | tuple[Any, ...], tolerance: float) -> Difference | None:
    if not isinstance(got, list | tuple):
        return Difference(f"a list of {len(expected)} tensors was expected, not {_kind(got)}")
    if len(got) != len(expected):
        return Difference(f"{len(got)} tensors instead of {len(expected)}")
    names = getattr(expected, "names", [f"entry {index}" for index in range(len(expected))])
    for name, a, b in zip(names, got, expected, strict=True):
        if a is None and name.startswith("d"):
            return Difference(f"{name}: no gradient arrived")
        found = first_difference(a, b, tolerance)
        if found is not None:
            return Difference(f"{name}: {found}", found.size)
    return None


def _value_difference(got: np.ndarray, expected: np.ndarray, tolerance: float) -> Difference | None:
    if expected.size == 0:
        return None
    error = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    scale = float(np.max(np.abs(expected))) or 1.0
    bad = ~(error <= tolerance * scale)
    if not bad.any():
        return None
    where = [int(i) for i in np.unravel_index(int(np.argmax(bad)), expected.shape)]
    place = where[0] if len(where) == 1 else where
    size = float(np.max(error)) / scale
    first = "the scalar" if not where else f"first at element {place}"
    return Difference(f"largest relative error {size:.1g}, {int(bad.sum())} of {bad.size} elements, {first}", size)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, list | tuple):
        return in_words(value)
    if value is None or isinstance(value, Strange):
        return "nothing" if value is None else value.kind
    return f"{type(value).__name__} {value!r}"[:60]
