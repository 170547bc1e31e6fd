"""What a rank holds of each weight in the stages of ZeRO, beside the formula."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from tpcourse.draw.bars import GREY, KINDS
from tpcourse.draw.palette import SMALL, TEXT, colour, ink, plot_axes, styled, tint

Bytes = Mapping[str, float]
INCHES = 5.2  # the length of the longest bar, about


@styled
def stage_bytes(held: Mapping[str, Bytes], said: Mapping[str, Bytes], ax: Axes | None = None) -> Axes:
    """A bar for each way to train: bytes a weight that a rank holds, by kind, and below it, dashed, what is said of it.

    Raises: ValueError for no way, other ways in one than in the other, or an unknown kind.
    """
    kinds = {kind for bar in (*held.values(), *said.values()) for kind in bar}
    if not held or set(held) != set(said) or not kinds <= set(KINDS):
        raise ValueError(f"ways {[*held]} and {[*said]} of {sorted(kinds)}: give both the same, of {', '.join(KINDS)}")
    longest = max(sum(bar.values()) for bar in (*held.values(), *said.values()))
    ax = plot_axes(ax, "bytes a weight", 8.4, 0.95 + 0.52 * len(held))
    for row, name in enumerate(held):
        _bar(ax, row - 0.13, 0.42, held[name], colour(0), longest)
        _bar(ax, row + 0.22, 0.2, said[name], GREY, longest)
    ax.set_yticks(range(len(held)), list(held))
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(0, 1.1 * longest), ylim=(len(held) - 0.45, -0.6), xlabel="bytes a weight, on each rank")
    look: dict[str, Any] = {"edgecolor": TEXT, "linewidth": 0.8}
    keys = [Patch(facecolor=tint(colour(0), KINDS[kind]), label=kind, **look) for kind in KINDS if kind in kinds]
    keys.append(Patch(facecolor="none", linestyle="--", label="formula", **look))
    ax.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="held as", alignment="left")
    return ax


def _bar(ax: Axes, y: float, height: float, held: Bytes, fill: str, longest: float) -> None:
    """Kinds one after another, with the numbers that fit, and their sum behind them."""
    left, is_measured = 0.0, fill != GREY
    style: dict[str, Any] = {"linestyle": "-" if is_measured else "--", "linewidth": 0.8, "edgecolor": TEXT}
    for kind in (kind for kind in KINDS if held.get(kind)):
        size, shade = held[kind], tint(fill, KINDS[kind])
        gid = "held" if is_measured else "formula"
        ax.barh(y, size, height, left, color=shade if is_measured else "none", gid=gid, **style)
        if is_measured and size > 0.09 * len(f"{size:.3g}") * longest / INCHES:
            ax.text(left + size / 2, y, f"{size:.3g}", ha="center", va="center", size=SMALL, color=ink(shade))
        left += size
    if is_measured:
        ax.text(left + 0.01 * longest, y, f"{left:.3g}", va="center", weight="bold", size=SMALL + 1)
