"""Time with a gather and a scatter-sum over time with all-reduces, by the size of what travels."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from tpcourse.draw.palette import FAINT, SMALL, TEXT, bytes_text, plot_axes, styled, tint
from tpcourse.draw.recordings import recorded

Curve = Mapping[float, float]  # bytes of the whole array -> time of the pair over time of the all-reduce
MOST = 5
MARKS, STRENGTHS = "os^Dv", (1.0, 0.75, 0.55, 0.4, 0.28)


@styled
def pair_ratio(curves: Mapping[str, Curve], title: str = "", ax: Axes | None = None) -> Axes:
    """For each name a curve: how long it takes with the gather/scatter pair, in times of the all-reduce's.

    Below 1 the pair is faster. Raises: ValueError for no curve, more than five, or a size or ratio not above 0.
    """
    _require(curves)
    ax = plot_axes(ax, "pair ratio", 7.6, 3.3)
    for (name, curve), mark, strength in zip(curves.items(), MARKS, STRENGTHS, strict=False):
        sizes, fill = sorted(curve), tint(TEXT, strength)
        ratios = [curve[size] for size in sizes]
        ax.plot(sizes, ratios, f"-{mark}", color=fill, markersize=5, linewidth=1.2, label=name, gid="curve")
    ax.axhline(1, color=FAINT, linewidth=0.8, gid="equal")
    largest = max(ratio for curve in curves.values() for ratio in curve.values())
    ax.set(xscale="log", ylim=(0, 1.15 * max(1.25, largest)), xlabel="bytes of the whole array")
    ax.set(ylabel="pair / all-reduce", title=title)
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0,) if high > 50 * low else (1.0, 2.0, 5.0), numticks=8))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=SMALL + 1)
    return ax


def recorded_pairs(recordings: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, dict[float, float]]:
    """Machine -> curve of a block's forward and backward, out of the recorded run of `tpcourse bench tensor`.

    Empty if none was recorded; `recordings` are those of `recorded("tensor")`.
    """
    found = recorded("tensor") if recordings is None else recordings
    return {name: _curve(figures["block"], 2 if figures["backend"] == "nccl" else 4) for name, figures in found.items()}


def _curve(rows: Sequence[Mapping[str, Any]], element_bytes: int) -> dict[float, float]:
    """The bench calls the pair "tokens split"; it computes in bfloat16 on GPUs and in float32 elsewhere."""
    return {
        float(element_bytes * row["tokens"] * row["D"]): row["ms"]["ours, tokens split"] / row["ms"]["ours"]
        for row in rows
    }


def _require(curves: Mapping[str, Curve]) -> None:
    numbers = [number for curve in curves.values() for point in curve.items() for number in point]
    if not 1 <= len(curves) <= MOST or not all(curves.values()) or min(numbers) <= 0:
        raise ValueError(
            f"{len(curves)} curves of {[len(curve) for curve in curves.values()]} points: give 1 to {MOST} names "
            "mapped to bytes -> ratio, all above 0"
        )
