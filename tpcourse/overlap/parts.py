"""Tokens of all ranks as they come: parts of a block [b, R, D], each with its place. And cutting such a block."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

Place = tuple[slice, slice]
"""Which of b and which of R: block[place] is a view."""


class Part(NamedTuple):
    """Some rows of all ranks' tokens: where they belong, and the rows.

    In a block `with part.beside():` work on this part may run at the same time as that on the others. A form may hand
    out its rows twice: as they come, for what is done row by row (`is_new`), and all of them in one part, for a sum
    over the tokens (`is_summed`), which is one product then.
    """

    at: Place
    block: Tensor
    beside: Callable[[], AbstractContextManager[object]] = nullcontext
    is_new: bool = True
    is_summed: bool = True


def everything(block: Tensor) -> Place:
    """The place of a whole block."""
    return slice(0, block.shape[0]), slice(0, block.shape[1])


def rows_of(rank: int, sizes: list[int], b: int) -> Place:
    """The place of one rank's rows, where each has `sizes` of them."""
    begin = sum(sizes[:rank])
    return slice(0, b), slice(begin, begin + sizes[rank])


def cut(place: Place, num_parts: int) -> list[Place]:
    """The same in parts of about equal size, maybe empty: along b, or along R where b is 1.

    Parts of a contiguous block are contiguous.
    """
    b, rows = place
    if b.stop - b.start > 1:
        return [(part, rows) for part in _cut(b, num_parts)]
    return [(b, part) for part in _cut(rows, num_parts)]


def _cut(whole: slice, num_parts: int) -> list[slice]:
    size = whole.stop - whole.start
    bounds = [whole.start + size * number // num_parts for number in range(num_parts + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]
