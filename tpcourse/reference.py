"""What each rank must hold after a collective, computed on one device.

Every function takes a list with one tensor per rank (what each rank holds before) and returns a list with
one entry per rank (what it must hold after). None stands for nothing. Inputs are not modified, and outputs
share no memory with them or with each other. Sums are added in rank order; give float64 where the last
digits matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tpcourse.dims import split_sizes

REDUCTIONS = ("sum", "avg", "max", "min", "product")


def reduced(xs: Sequence[Tensor], op: str = "sum") -> Tensor:
    """One tensor from one per rank, element by element: sum, avg, max, min or product.

    Raises: ValueError if the shapes or dtypes differ or the operation is unknown.
    """
    _require_alike(xs)
    if op not in REDUCTIONS:
        raise ValueError(f"op = {op!r} is unknown: use one of {', '.join(REDUCTIONS)}")
    combine = {"max": torch.maximum, "min": torch.minimum, "product": torch.mul}.get(op, torch.add)
    total = xs[0].clone()
    for x in xs[1:]:
        total = combine(total, x)
    return total / len(xs) if op == "avg" else total


def all_reduce(xs: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
    """Every rank holds the reduction of all ranks' tensors. Shapes: p of [...] -> p of [...]."""
    return _copies(reduced(xs, op), len(xs))


def reduce(xs: Sequence[Tensor], root: int = 0, op: str = "sum") -> list[Tensor | None]:
    """The root holds the reduction, the others nothing. Shapes: p of [...] -> [...] on the root."""
    return _only(root, reduced(xs, op), len(xs))


def reduce_scatter(
    xs: Sequence[Tensor], op: str = "sum", dim: int = 0, sizes: Sequence[int] | None = None
) -> list[Tensor]:
    """Rank r holds piece r of the reduction. Shapes: p of [n] -> p of [n/p] along dim (uneven allowed)."""
    return _cut(reduced(xs, op), len(xs), dim, sizes)


def all_gather(shards: Sequence[Tensor], dim: int = 0) -> list[Tensor]:
    """Every rank holds all shards, joined along dim in rank order. Shapes: p of [n/p] -> p of [n]."""
    return _copies(torch.cat(list(shards), dim), len(shards))


def gather(shards: Sequence[Tensor], root: int = 0, dim: int = 0) -> list[Tensor | None]:
    """The root holds all shards joined along dim, others nothing. Shapes: p of [n/p] -> [n] on the root."""
    return _only(root, torch.cat(list(shards), dim), len(shards))


def broadcast(xs: Sequence[Tensor], root: int = 0) -> list[Tensor]:
    """Every rank holds the root's tensor. Shapes: [...] -> p of [...]."""
    _require_root(root, len(xs))
    return _copies(xs[root], len(xs))


def scatter(xs: Sequence[Tensor], root: int = 0, dim: int = 0, sizes: Sequence[int] | None = None) -> list[Tensor]:
    """Rank r holds piece r of the root's tensor. Shapes: [n] -> p of [n/p] along dim (uneven allowed)."""
    _require_root(root, len(xs))
    return _cut(xs[root], len(xs), dim, sizes)


def all_to_all(xs: Sequence[Tensor], send_sizes: Sequence[Sequence[int]] | None = None) -> list[Tensor]:
    """Rank r holds piece r of every rank's tensor, in rank order along dim 0.

    `send_sizes[s][r]` rows go from rank s to rank r; None cuts each tensor by `split_sizes`. As a matrix of
    pieces this is the transpose. Shapes: [sum_r send_sizes[s][r], ...] -> [sum_s send_sizes[s][r], ...].
    """
    p = len(xs)
    table = send_sizes or [split_sizes(x.shape[0], p) for x in xs]
    if len(table) != p or any(len(row) != p for row in table):
        raise ValueError(f"{p} ranks need {p} rows of {p} send sizes each, not {[len(row) for row in table]}")
    pieces = [_cut(x, p, 0, row) for x, row in zip(xs, table, strict=True)]
    return [torch.cat([pieces[s][r] for s in range(p)]) for r in range(p)]


def _cut(x: Tensor, p: int, dim: int, sizes: Sequence[int] | None) -> list[Tensor]:
    sizes = split_sizes(x.shape[dim], p) if sizes is None else list(sizes)
    if len(sizes) != p or sum(sizes) != x.shape[dim]:
        n = x.shape[dim]
        raise ValueError(f"sizes = {sizes} must be {p} numbers that sum to {n}, the length of dim {dim}")
    return [piece.clone() for piece in x.split(sizes, dim)]


def _copies(x: Tensor, p: int) -> list[Tensor]:
    return [x.clone() for _ in range(p)]


def _only(root: int, x: Tensor, p: int) -> list[Tensor | None]:
    _require_root(root, p)
    return [x if r == root else None for r in range(p)]


def _require_root(root: int, p: int) -> None:
    if root not in range(p):
        raise ValueError(f"root = {root} is not one of {p} ranks: use 0 to {p - 1}")


def _require_alike(xs: Sequence[Tensor]) -> None:
    if len({(tuple(x.shape), x.dtype) for x in xs}) != 1:
        found = ", ".join(f"rank {r} {list(x.shape)} {x.dtype}" for r, x in enumerate(xs))
        raise ValueError(f"every rank needs the same shape and dtype, found {found or 'no rank'}")
