"""What every function of `costs` asks of its numbers, and the sentence a user reads when it is not so."""

from __future__ import annotations

from math import isfinite
from numbers import Integral, Real


def require_positive(value: float, name: str, example: str) -> float:
    """The value. Raises: ValueError that quotes it and gives an example, unless it is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value) or value <= 0:
        raise ValueError(f"{name} = {value!r} must be a number above 0: give for example {example}")
    return float(value)


def require_not_negative(value: float, name: str, example: str) -> float:
    """The value. Raises: ValueError that quotes it and gives an example, unless it is a number of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value) or value < 0:
        raise ValueError(f"{name} = {value!r} must be a number of 0 or more: give for example {example}")
    return float(value)


def require_bytes(num_bytes: float) -> float:
    """The size of an array. Raises: ValueError that quotes it, unless it is above 0."""
    return require_positive(num_bytes, "num_bytes", "1e6, the bytes of the whole array")


def require_ranks(p: int) -> int:
    """The size of a group. Raises: ValueError that quotes it, unless it is a whole number of 1 or more."""
    if isinstance(p, bool) or not isinstance(p, Integral) or p < 1:
        raise ValueError(f"p = {p!r} is not a number of ranks: give a whole number of 1 or more, for example 8")
    return int(p)
