"""What a training step waits for, out of the recorded run of `tpcourse bench exposed`."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from tpcourse.draw.palette import FAINT, PAPER, SMALL, TEXT, plot_axes, styled, tint
from tpcourse.draw.recordings import none_on_gpus, recorded_on_gpus

Row = Mapping[str, Any]
NONE = none_on_gpus("exposed")


def recorded_exposed(recordings: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[list[Row], str]:
    """Rows and title for `exposed_times(*recorded_exposed())`.

    No rows, and a title that says so, if none was recorded on GPUs; `recordings` are those of `recorded("exposed")`.
    """
    if (run := recorded_on_gpus("exposed", recordings)) is None:
        return [], NONE
    machine, figures = run
    return figures["rows"], machine


def recorded_step(
    variant: str, recordings: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[list[Any], float | None]:
    """The recorded timeline of a variant, such as "buckets" or "prefetch", and its E: `timeline(spans, hidden=E)`.

    No spans, and None, if none was recorded on GPUs.
    """
    _, figures = recorded_on_gpus("exposed", recordings) or ("", {"timelines": []})
    lines = [one for one in figures["timelines"] if one["variant"] == variant]
    if not lines:
        return [], None
    rows = [row for row in figures["rows"] if (row["kind"], row["variant"]) == (lines[0]["kind"], variant)]
    return lines[0]["spans"], rows[0]["hidden"]


@styled
def exposed_times(rows: Sequence[Row], title: str = "", ax: Axes | None = None) -> Axes:
    """A bar for each step: what it takes if nothing is sent, and hatched what communication adds; E beside it.

    A row has "kind", "variant", "ms", "exposed_ms" and "hidden", as `tpcourse bench exposed` records them. No rows are
    a title without a plot.
    """
    ax = plot_axes(ax, "exposed times", 8.2, 1.2 + 0.36 * len(rows) if rows else 0.5)
    ax.set_title(title)
    if not rows:
        ax.set_axis_off()
        return ax
    for number, row in enumerate(rows):
        alone_ms, more_ms = row["ms"] - max(0.0, row["exposed_ms"]), max(0.0, row["exposed_ms"])
        ax.barh(number, alone_ms, 0.7, facecolor=tint(TEXT, 0.25), edgecolor="none", gid="alone")
        look = {"facecolor": PAPER, "edgecolor": TEXT, "hatch": "////", "linewidth": 0.0}
        ax.barh(number, more_ms, 0.7, alone_ms, **look, gid="exposed")
        E = "" if row["hidden"] is None else f", E = {row['hidden']:.2f}"
        ax.text(row["ms"], number, f" {row['ms']:.1f} ms{E}", va="center", size=SMALL)
    kinds = [row["kind"] for row in rows]
    for number in range(1, len(rows)):
        if kinds[number] != kinds[number - 1]:
            ax.axhline(number - 0.5, color=FAINT, linewidth=0.8)
    ax.set_yticks(range(len(rows)), [f"{row['kind']}: {row['variant']}" for row in rows])
    ax.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1.3 * max(row["ms"] for row in rows)))
    ax.set_xlabel("ms of forward and backward; hatched: exposed communication")
    ax.tick_params(axis="y", length=0)
    return ax
