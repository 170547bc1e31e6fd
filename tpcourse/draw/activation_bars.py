"""What one block keeps for backward, storage by storage: what is whole on a rank, and what was cut."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tpcourse.draw.palette import PAPER, SMALL, TEXT, colour, ink, plot_axes, styled, tint

if TYPE_CHECKING:
    from tpcourse.memory import Saved

GREY, WHOLE, CUT = "#8A8A8A", 1.0, 0.3
INCHES = 4.6  # the length of the longest bar, about
Pair = tuple["Saved", "Saved"]  # what a rank keeps, what one device keeps


@styled
def activations(kept: Mapping[str, Pair], unit: float, p: int, ax: Axes | None = None) -> Axes:
    """A bar of storages for one device, and one for each name, in the order in which forward saved them.

    `kept` maps a name to what one of p ranks keeps and what one device keeps; sizes are in units of `unit` bytes.
    Dark is as large as on one device, pale was cut, and the mark is the p-th part of one device's.

    Raises: ValueError for no pair, a unit that is not above 0, p < 1, or a pair of different storages.
    """
    _require(kept, unit, p)
    first = next(iter(kept.values()))[1]
    longest = max(saved.bytes for pair in kept.values() for saved in pair) / unit
    ax = plot_axes(ax, "activations", 8.4, 1.35 + 0.42 * (1 + len(kept)))
    _bar(ax, 0, [(size, tint(GREY, 0.45)) for size in _sizes(first, unit)], longest, -longest)
    for row, (mine, one) in enumerate(kept.values(), 1):
        pairs = zip(_sizes(mine, unit), _sizes(one, unit), strict=True)
        share = one.bytes / unit / p
        _bar(ax, row, [(a, tint(colour(0), WHOLE if a == b else CUT)) for a, b in pairs], longest, share)
        ax.plot([share] * 2, [row - 0.42, row + 0.42], "--", color=TEXT, linewidth=1.3, gid="share")
    ax.set_yticks(range(1 + len(kept)), ["one device", *kept])
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(0, 1.1 * longest), ylim=(len(kept) + 0.6, -0.6), xlabel="bytes kept for backward, in units of BTD")
    keys: list[Any] = [Patch(facecolor=tint(colour(0), s), label=t) for s, t in ((WHOLE, "whole"), (CUT, "cut"))]
    keys.append(Line2D([], [], linestyle="--", color=TEXT, label=f"one device / {p}"))
    ax.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="on a rank", alignment="left")
    return ax


def _sizes(saved: "Saved", unit: float) -> list[float]:
    return [storage.bytes / unit for storage in saved.kept if not storage.is_parameter]


def _bar(ax: Axes, row: int, blocks: list[tuple[float, str]], longest: float, share: float) -> None:
    """Storages one after another, with the numbers that fit beside the mark at `share`, and their sum behind them."""
    left, inch = 0.0, longest / INCHES
    for size, fill in blocks:
        ax.barh(row, size, 0.66, left, color=fill, edgecolor=PAPER, linewidth=0.8, gid="storage")
        text, middle = f"{size:.2g}", left + size / 2
        width = (0.06 * len(text) + 0.04) * inch
        if size > width and abs(middle - share) > width / 2:
            ax.text(middle, row, text, ha="center", va="center", size=SMALL - 1, color=ink(fill))
        left += size
    ax.text(left + 0.008 * longest, row, f"{left:.3g}", va="center", weight="bold", size=SMALL + 0.5)


def _require(kept: Mapping[str, Pair], unit: float, p: int) -> None:
    if not kept or not unit > 0 or p < 1:
        raise ValueError(f"{len(kept)} pairs, unit = {unit}, p = {p}: give at least one pair, a unit above 0, p from 1")
    for name, pair in kept.items():
        mine, one = (len(_sizes(saved, unit)) for saved in pair)
        if mine != one:
            raise ValueError(
                f"{name}: {mine} storages on a rank and {one} on one device cannot be compared one by one: "
                "count both with the same recompute"
            )
