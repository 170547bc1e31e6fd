"""The forms by their names: how tokens arrive beside products, and how sums leave beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from tpcourse.overlap import peer, popular, ring, serial
from tpcourse.overlap.area import MOST_PIECES
from tpcourse.overlap.parts import Part


class Form(NamedTuple):
    """Two functions of one way to do it; see `serial` for what they take and give.

    A form that `lends` has its parts in memory that the next call needs: backward gathers again, hidden, which costs
    less than a copy.
    """

    arriving: Callable[..., Iterator[Part]]
    scatter: Callable[..., Tensor]
    lends: bool = False


class How(NamedTuple):
    """What the caller chose."""

    form: str
    pieces: int | None = None
    regather: bool = False


FORMS: Mapping[str, Form] = MappingProxyType({
    "serial": Form(serial.arriving, serial.scatter),
    "ring": Form(ring.arriving, ring.scatter),
    "peer": Form(peer.arriving, peer.scatter, lends=True),
    "popular": Form(popular.arriving, popular.scatter),
})  # fmt: skip
"""Name -> form. `auto` is none: `choice` picks one of these for it."""


def require_how(form: str, pieces: int | None) -> None:
    """Raises: ValueError for a form that is not there, or fewer than 1 piece or more than 4."""
    if form not in FORMS and form != "auto":
        raise ValueError(f"form = {form!r} is unknown: use one of {', '.join([*FORMS, 'auto'])}")
    if pieces is not None and pieces not in range(1, MOST_PIECES + 1):
        raise ValueError(
            f"pieces = {pieces!r}: use 1 to {MOST_PIECES}, or None for the form's own choice; more pieces are "
            "smaller products, which are slower"
        )
