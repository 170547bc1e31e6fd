"""How each weight lies on the ranks: one table. Whatever is parallel about the model's weights reads it.

Initial weights, gradient sums, the global norm, saving and loading ask `shard_of` which rows or columns of the
whole, one-device weight are here. Weights are [out, in] as in torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

import torch
from torch import Tensor

from tpcourse.block.config import GPTConfig
from tpcourse.dims import split_range
from tpcourse.linear import Heads

LAYOUTS: Mapping[str, str] = MappingProxyType(
    {
        "tokens.weight": "vocabulary",  # [V, D], the head too where it is tied
        "head.weight": "vocabulary",  # [V, D]
        "places.weight": "whole",  # [T, D]
        "*norm*": "whole",  # [D]
        "*.qkv.*": "heads",  # [(H + 2 kv) K, D], and its bias
        "*.out.weight": "rows",  # [D, H K]
        "*.up.*": "columns",  # [F, D], and its bias
        "*.gate_up.*": "column pairs",  # [2 F, D], gate above up, and its bias
        "*.down.weight": "rows",  # [D, F]
        "*.out.bias": "whole",  # [D], added after the sum
        "*.down.bias": "whole",  # [D]
    }
)
"""Pattern of a parameter's name -> its layout; the first that fits counts.

"columns" cuts the outputs (dim 0), "rows" the inputs (dim 1), named after y = x W^T as a matrix of inputs by
outputs. "column pairs" and "heads" cut each of their 2 or 3 parts. "whole" is on every rank.
"""


@dataclass(frozen=True)
class Piece:
    """From `start` to before `end` of the whole weight, along the shard's dim."""

    start: int
    end: int
    is_first: bool  # this rank is the first to hold it: it counts it in norms and saves it


@dataclass(frozen=True)
class Shard:
    """What one rank holds of a weight of `shape`: pieces along `dim`, one after another."""

    layout: str
    shape: tuple[int, ...]
    dim: int
    pieces: tuple[Piece, ...]

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of what is held here."""
        length = sum(piece.end - piece.start for piece in self.pieces)
        return (*self.shape[: self.dim], length, *self.shape[self.dim + 1 :])

    def cut(self, whole: Tensor) -> Tensor:
        """This rank's part of the whole weight, in memory of its own."""
        return torch.cat([self._place(piece, whole) for piece in self.pieces], self.dim)

    def views(self, local: Tensor) -> list[Tensor]:
        """The pieces of what is held here, as views."""
        return list(local.split([piece.end - piece.start for piece in self.pieces], self.dim))

    def paste(self, local: Tensor, whole: Tensor) -> None:
        """Write this rank's part to its place in the whole weight."""
        for piece, view in zip(self.pieces, self.views(local), strict=True):
            self._place(piece, whole).copy_(view)

    def _place(self, piece: Piece, whole: Tensor) -> Tensor:
        return whole.narrow(self.dim, piece.start, piece.end - piece.start)


def layout_of(name: str, layouts: Mapping[str, str] = LAYOUTS) -> str:
    """The layout of a parameter. Raises: ValueError if no pattern fits its name."""
    found = next((layout for pattern, layout in layouts.items() if fnmatchcase(name, pattern)), None)
    if found is None:
        raise ValueError(f"no line of the table of layouts fits the weight {name}: add one")
    return found


def shard_of(
    name: str, shape: Sequence[int], config: GPTConfig, p: int, r: int, layouts: Mapping[str, str] = LAYOUTS
) -> Shard:
    """What rank r of p holds of the one-device weight of this name and shape.

    Raises: ValueError if no pattern fits the name, the layout is unknown, or p does not divide the heads.
    """
    layout = layout_of(name, layouts)
    dim = 1 if layout == "rows" else 0
    n = shape[dim]
    if layout == "whole":
        pieces = [Piece(0, n, r == 0)]
    elif layout == "column pairs":
        pieces = [_even(n // 2, p, r), _even(n // 2, p, r, offset=n // 2)]
    elif layout == "heads":
        pieces = _heads(config, p, r)
    elif layout in ("rows", "columns", "vocabulary"):
        pieces = [_even(n, p, r)]
    else:
        known = ", ".join(sorted({*LAYOUTS.values()}))
        raise ValueError(f"the layout {layout!r} of {name} is unknown: use one of {known}")
    return Shard(layout, tuple(shape), dim, tuple(pieces))


def _even(n: int, p: int, r: int, offset: int = 0) -> Piece:
    start, end = split_range(n, p, r)
    return Piece(offset + start, offset + end, True)


def _heads(config: GPTConfig, p: int, r: int) -> list[Piece]:
    """Rows of this rank's heads: queries, then K, then V."""
    held, H, K = Heads(config.H, config.kv_heads, None, at=(r, p)), config.H, config.K
    is_first = r % held.copies == 0  # of the ranks with the same K/V heads
    parts = ((0, held.heads, True), (H, held.kv_heads, is_first), (H + config.kv_heads, held.kv_heads, is_first))
    return [Piece((start + part.start) * K, (start + part.stop) * K, first) for start, part, first in parts]
