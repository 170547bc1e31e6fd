"""The letters of the course, and how a length is cut into one piece per rank."""

from __future__ import annotations

from types import MappingProxyType

LETTERS = MappingProxyType(
    {
        "B": "batch: sequences in a step",
        "T": "tokens in a sequence",
        "D": "width: numbers that describe a token",
        "F": "hidden width of the MLP",
        "H": "attention heads",
        "K": "width of a head",
        "V": "vocabulary: different tokens",
        "L": "layers",
        "M": "micro-batches in a step",
        "E": "experts",
        "p": "ranks in a group",
        "r": "this rank, from 0 to p - 1",
        "n": "length of the whole array: elements, or bytes where the text says so",
    }
)
"""Letter -> meaning. `[B, T, F/p]` is a shape; a slash marks a shard, here F split over p ranks."""

AXES = MappingProxyType(
    {
        "dp": "data parallel: other sequences, equal weights",
        "pp": "pipeline parallel: other layers",
        "cp": "context parallel: other tokens of one sequence",
        "tp": "tensor parallel: other columns or rows of one weight",
        "ep": "expert parallel: other experts",
    }
)
"""Axis of the grid of ranks -> what its ranks hold. A `dim` is a tensor's, an `axis` is the grid's."""


def split_sizes(n: int, p: int) -> list[int]:
    """Sizes of the p pieces of a length n: as even as possible, the longer ones first.

    n = a p + b with 0 <= b < p gives b pieces of a + 1 and p - b pieces of a. A length below p leaves pieces
    of size 0. `torch.tensor_split` cuts the same way; `torch.chunk` does not (10 over 4 becomes 3, 3, 3, 1).

    Raises: ValueError if n is negative or p is not positive.
    """
    _require_int(n, "a length", least=0)
    _require_int(p, "the number of pieces", least=1)
    quotient, remainder = divmod(n, p)
    return [quotient + 1] * remainder + [quotient] * (p - remainder)


def split_range(n: int, p: int, r: int) -> tuple[int, int]:
    """First index of piece r of a length n cut into p, and the index after its last.

    Sizes are those of `split_sizes`. `x[start:end]` is the shard of rank r.

    Raises: ValueError as `split_sizes`, and if r is not one of 0 .. p - 1.
    """
    sizes = split_sizes(n, p)
    _require_int(r, "a rank", least=0)
    if r >= p:
        raise ValueError(f"rank {r} is not one of {p} ranks: use 0 to {p - 1}")
    start = sum(sizes[:r])
    return start, start + sizes[r]


def require_divisible(n: int, p: int, name: str) -> int:
    """n / p, where an algorithm needs pieces of equal size.

    Raises: ValueError that names the length, both numbers and the nearest lengths that fit.
    """
    _require_int(n, name, least=0)
    _require_int(p, "the number of pieces", least=1)
    if n % p:
        lower, upper = n // p * p, (n // p + 1) * p
        nearest = f"{lower} or {upper}" if lower else f"{upper}"
        raise ValueError(
            f"{name} = {n} does not divide by {p} ranks ({n} = {n // p} x {p} + {n % p}): "
            f"use {name} = {nearest}, or a number of ranks that divides {n}"
        )
    return n // p


def _require_int(value: int, name: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
