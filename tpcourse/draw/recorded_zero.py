"""Memory against time of the ways to hold a model's states, out of the recorded run of `tpcourse bench zero`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from tpcourse.draw.palette import FAINT, PAPER, SMALL, TEXT, plot_axes, styled
from tpcourse.draw.recordings import none_on_gpus, recorded_on_gpus

Row = Mapping[str, Any]
LOOKS = {"ours": ("o", TEXT, 6, ""), "torch's": ("^", PAPER, 9, " (torch)")}
"""Whose -> mark, fill, size, what the label adds."""
OFF, ON = "stage 3, no prefetch", "stage 3"
GAP = 0.09  # between two labels, in heights of the axes
NONE = none_on_gpus("zero")


def recorded_stages(recordings: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[list[Row], str]:
    """Rows and title for `memory_and_time(*recorded_stages())`: the recorded run's variants; its model and machine.

    No rows, and a title that says so, if none was recorded on GPUs; `recordings` are those of `recorded("zero")`.
    """
    if (run := recorded_on_gpus("zero", recordings)) is None:
        return [], NONE
    machine, figures = run
    return figures["rows"], f"{figures['num_parameters'] / 1e9:.2g} B parameters, {machine}"


@styled
def memory_and_time(rows: Sequence[Row], title: str = "", ax: Axes | None = None) -> Axes:
    """Each variant of `tpcourse bench zero` at its milliseconds a step and its peak in GB; the best are lower left.

    A row has "name", "whose" ("ours", a dot, or "torch's", a triangle), "ms" and "peak_GB". The arrow leads from stage
    3 without prefetch to stage 3 with it. No rows are a title without a plot: a lesson runs without a recording too.
    Raises: ValueError for a row without a peak, as on the CPU, where no allocator counts.
    """
    if missing := [row["name"] for row in rows if row["peak_GB"] is None]:
        raise ValueError(f"{len(missing)} of {len(rows)} rows have no peak, such as {missing[0]!r}: give a run on GPUs")
    ax = plot_axes(ax, "memory and time", 7.6, 3.6 if rows else 0.5)
    ax.set_title(title)
    if not rows:
        ax.set_axis_off()
        return ax
    xs, ys = [row["ms"] for row in rows], [row["peak_GB"] for row in rows]
    ax.set(xlim=_limits(xs), ylim=_limits(ys), xlabel="ms a step", ylabel="peak of a rank, GB")
    _arrow(ax, {row["name"]: (row["ms"], row["peak_GB"]) for row in rows})
    _points(ax, sorted(rows, key=lambda row: row["peak_GB"]))
    return ax


def _points(ax: Axes, rows: Sequence[Row]) -> None:
    """A mark for each row, and its name right of the axes at the end of a thin line."""
    low, high = ax.get_ylim()
    heights = _apart([(row["peak_GB"] - low) / (high - low) for row in rows])
    for row, height in zip(rows, heights, strict=True):
        mark, fill, size, more = LOOKS[row["whose"]]
        ax.plot(row["ms"], row["peak_GB"], mark, color=TEXT, markerfacecolor=fill, markersize=size, gid=row["whose"])
        line = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        ends: dict[str, Any] = {"xy": (row["ms"], row["peak_GB"]), "xytext": (1.03, height)}
        ax.annotate("", **ends, textcoords="axes fraction", arrowprops=line, gid="line")
        where = {"transform": ax.transAxes, "va": "center", "size": SMALL + 1}
        ax.text(1.04, height, row["name"] + more, gid="name", **where)


def _arrow(ax: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """What prefetching changes."""
    if OFF in points and ON in points:
        style = {"arrowstyle": "->", "color": TEXT, "linewidth": 1.2, "shrinkA": 5, "shrinkB": 5}
        ax.annotate("", points[ON], points[OFF], arrowprops=style, gid="prefetch")


def _apart(heights: Sequence[float]) -> list[float]:
    """Rising heights, moved as little upwards as leaves GAP between two; then all down, if the last is above 1."""
    found: list[float] = []
    for height in heights:
        found.append(max(height, found[-1] + GAP) if found else height)
    for number in range(len(found)):
        found[-1 - number] = min(found[-1 - number], 1 - number * GAP)
    return found


def _limits(values: Iterable[float]) -> tuple[float, float]:
    """Room around all values; at least a tenth of the largest in all, so that what hardly differs looks alike."""
    low, high = min(found := list(values)), max(found)
    room = max(0.12 * (high - low), 0.05 * high - (high - low) / 2)
    return low - room, high + room
