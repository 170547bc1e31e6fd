"""Which bytes each rank holds, beside the formula."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from tpcourse.draw.palette import (
    SMALL,
    TEXT,
    colour,
    hatch,
    ink,
    plot_axes,
    styled,
    tint,
)  # fmt: skip

KINDS = {
    "parameter": 1.0, "gradient": 0.82, "master": 0.66, "moment": 0.5, "activation": 0.36, "buffer": 0.22, "other": 0.1,
}  # fmt: skip
GREY = "#333333"
Bytes = Mapping[str, float]


@styled
def memory_bars(
    per_rank: Sequence[Bytes], formula: Bytes | Sequence[Bytes] | None = None, ax: Axes | None = None
) -> Axes:
    """Bytes that each rank holds, stacked by kind, beside what the formula says (one for all ranks, or one per rank).
    Kinds are shades of the rank's colour, parameters the darkest; buffers of communication are hatched.

    Raises: ValueError for no rank, an unknown kind, negative bytes, or formulas that are not one per rank.
    """
    said = [] if formula is None else [formula] if isinstance(formula, Mapping) else list(formula)
    _require(per_rank, said)
    bars = _places(per_rank, said)
    ax = plot_axes(ax, "memory", min(9.2, 2.9 + 0.72 * len(bars)), 3.8)
    largest = max(sum(bar.held.values()) for bar in bars) or 1.0
    unit, name = next(((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= u), (1.0, "B"))
    for x, held, fill in bars:
        _bar(ax, x, {kind: size / unit for kind, size in held.items()}, fill, largest / unit)
    ticks = {bar.x: f"rank\n{rank}" for rank, bar in enumerate(bars[: len(per_rank)])}
    ticks |= {bars[-1].x: "formula"} if len(said) == 1 else {}
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.set(ylabel=f"memory ({name})", ylim=(0, 1.1 * largest / unit), xlim=(-0.6, bars[-1].x + 0.6))
    ax.tick_params(axis="x", length=0)
    _legend(ax, [kind for kind in KINDS if any(bar.held.get(kind) for bar in bars)], bool(said))
    return ax


class Bar(NamedTuple):
    x: float
    held: Bytes
    fill: str  # GREY: what the formula says


def _places(per_rank: Sequence[Bytes], said: list[Bytes]) -> list[Bar]:
    """The ranks' bars, then the formula's: one at the end, or one beside each rank."""
    pitch = 2.1 if len(said) > 1 else 1.0
    bars = [Bar(pitch * rank, held, colour(rank)) for rank, held in enumerate(per_rank)]
    first = len(per_rank) + 0.15 if len(said) == 1 else 0.85
    return bars + [Bar(first + pitch * rank, held, GREY) for rank, held in enumerate(said)]


def _bar(ax: Axes, x: float, held: Bytes, fill: str, largest: float) -> None:
    """One bar from the bottom up, with the numbers that fit."""
    base, style = 0.0, {"linestyle": "--" if fill == GREY else "-", "linewidth": 0.8, "edgecolor": TEXT}
    for kind, strength in KINDS.items():
        size, shade = held.get(kind, 0), tint(fill, strength)
        if size:
            ax.bar(x, size, 0.74, base, color=shade, hatch=hatch(0) if kind == "buffer" else None, gid=kind, **style)
        if size > 0.06 * largest:
            box = {"boxstyle": "round,pad=0.1", "facecolor": shade, "edgecolor": "none"} if kind == "buffer" else None
            ax.text(x, base + size / 2, f"{size:.3g}", ha="center", va="center", size=SMALL, color=ink(shade), bbox=box)
        base += size
    ax.text(x, base + 0.015 * largest, f"{base:.3g}", ha="center", va="bottom", weight="bold", size=SMALL + 0.5)


def _legend(ax: Axes, kinds: list[str], formula: bool) -> None:
    look = {"edgecolor": TEXT, "linewidth": 0.8}
    keys = [
        Patch(facecolor=tint(GREY, KINDS[k]), hatch=hatch(0) if k == "buffer" else None, label=k, **look)
        for k in reversed(kinds)
    ]
    keys += [Patch(facecolor="none", linestyle="--", label="formula", **look)] * formula
    ax.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="held as", alignment="left")


def _require(per_rank: Sequence[Bytes], said: list[Bytes]) -> None:
    if not per_rank:
        raise ValueError("0 ranks: give one dict of kind -> bytes per rank")
    if len(said) not in (0, 1, len(per_rank)):
        raise ValueError(f"{len(said)} formulas for {len(per_rank)} ranks: give one for all, or one per rank")
    for held in [*per_rank, *said]:
        for kind, size in held.items():
            if kind not in KINDS or size < 0:
                raise ValueError(f"{kind!r}: {size} bytes; kinds are {', '.join(KINDS)}, and bytes are not negative")
