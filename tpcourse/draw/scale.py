"""What changes with the number of GPUs, out of the recorded run of `tpcourse bench scale`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import nan
from typing import Any

from matplotlib.axes import Axes

from tpcourse.draw.palette import FAINT, PAPER, SMALL, TEXT, plot_axes, styled, tint
from tpcourse.draw.recordings import none_on_gpus, recorded_on_gpus

Row = Mapping[str, Any]
Lines = dict[str, dict[int, float]]  # name -> number of GPUs -> value
NONE = none_on_gpus("scale", 4)
KINDS = {"gather_product": "gather + product", "product_scatter": "product + scatter"}
MODES = ("TP", "TP + SP")
WAYS = ("ring", "peer")
MARKS = "os^DvPX*"
INKS = (TEXT, tint(TEXT, 0.6))  # in turn; a colour would be a rank's
APART = 0.03  # of two lines at the same number; the next is at 1, and more would bend the slopes


def recorded_scale(part: str, recordings: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[Lines, str]:
    """Lines and title for `by_ranks(*recorded_scale(part))`, part one of bus, model, pair, overlap and zero.

    No lines, and a title that says so, if none was recorded on GPUs; `recordings` are those of `recorded("scale")`.
    Raises: ValueError for another part.
    """
    if part not in PARTS:
        raise ValueError(f"part {part!r}: give one of {', '.join(PARTS)}")
    if (run := recorded_on_gpus("scale", recordings)) is None:
        return {}, NONE
    machine, figures = run
    return PARTS[part](figures[part]), machine


@styled
def by_ranks(
    lines: Mapping[str, Mapping[int, float]],
    title: str = "",
    *,
    ylabel: str = "",
    ideal: Callable[[int], float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """For each name a line by the number of GPUs; a number that a line lacks is a gap. `ideal` is dashed.

    No lines are a title without a plot. Raises: ValueError for more than eight.
    """
    if len(lines) > len(MARKS):
        raise ValueError(f"{len(lines)} lines: give at most {len(MARKS)}")
    ps = sorted({p for line in lines.values() for p in line})
    ax = plot_axes(ax, "by ranks", 8.6, 3.5 if ps else 0.5)
    ax.set(title=title, ylabel=ylabel)
    if not ps:
        ax.set_axis_off()
        return ax
    if ideal is not None:
        _ideal(ax, [ideal(p) for p in ps])
    _lines(ax, lines, ps)
    _scales(ax, ps)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=SMALL + 1)
    return ax


def _ideal(ax: Axes, values: Sequence[float]) -> None:
    look = {"color": FAINT, "linewidth": 1.2, "linestyle": (0, (4, 3)), "gid": "ideal"}
    ax.plot(range(len(values)), values, label="ideal", zorder=1.5, **look)


def _lines(ax: Axes, lines: Mapping[str, Mapping[int, float]], ps: Sequence[int]) -> None:
    """Side by side at each number, a little apart, so that no mark hides another of equal height."""
    for number, ((name, line), mark) in enumerate(zip(lines.items(), MARKS, strict=False)):
        look = {"color": INKS[number % len(INKS)], "linewidth": 1.3, "markersize": 7}
        xs = [place + APART * (number - (len(lines) - 1) / 2) for place in range(len(ps))]
        ys = [line.get(p, nan) for p in ps]
        ax.plot(xs, ys, f"-{mark}", label=name, gid="line", markeredgecolor=PAPER, markeredgewidth=0.6, **look)


def _scales(ax: Axes, ps: Sequence[int]) -> None:
    """y from 0, so that heights compare; from below the least, with a line at 0, if something is negative."""
    ax.set_xticks(range(len(ps)), [str(p) for p in ps])
    ax.set(xlim=(-0.3, len(ps) - 0.7), xlabel="GPUs")
    drawn = [float(y) for line in ax.lines for y in line.get_ydata() if y == y]
    low, high = min(0.0, *drawn), max(0.0, *drawn)
    room = 0.08 * ((high - low) or 1.0)
    if low < 0:
        ax.axhline(0, color=FAINT, linewidth=0.8, zorder=1, gid="zero")
    ax.set_ylim(low - room if low < 0 else 0.0, high + room)


def _collect(points: Iterable[tuple[str, int, float]]) -> Lines:
    lines: Lines = {}
    for name, p, value in points:
        lines.setdefault(name, {})[p] = value
    return lines


def _bus(rows: Sequence[Row]) -> Lines:
    largest = max((row["num_bytes"] for row in rows), default=0)
    return _collect((row["op"], row["p"], row["bus_GBps"]) for row in rows if row["num_bytes"] == largest)


def _model(rows: Sequence[Row]) -> Lines:
    split = [(f"{row['model']}: {row['mode']}", row) for row in rows if row["mode"] in MODES]
    return _collect(point for name, row in split for point in ((name, 1, 1.0), (name, row["p"], row["over_one"])))


def _pair(rows: Sequence[Row]) -> Lines:
    named = [(f"{row['tokens']} tokens, h {row['D']}", row["p"], row["ms"]) for row in rows]
    return _collect((name, p, ms["gather/scatter pair"] / ms["all-reduce pair"]) for name, p, ms in named)


def _overlap(rows: Sequence[Row]) -> Lines:
    return _collect(point for kind in KINDS for point in _hidden(kind, [row for row in rows if row["kind"] == kind]))


def _hidden(kind: str, rows: Sequence[Row]) -> list[tuple[str, int, float]]:
    """E of one kind, of the shapes that were measured at every p: between shapes more changes than p."""
    ps, shapes = {row["p"] for row in rows}, dict.fromkeys(tuple(row["shape"]) for row in rows)
    common = [shape for shape in shapes if ps == {row["p"] for row in rows if tuple(row["shape"]) == shape}]
    found = []
    for shape, way in product(common, WAYS):
        same = [row for row in rows if (tuple(row["shape"]), row["variant"]) == (shape, way)]
        name = f"{KINDS[kind]}: {way}" + (f", {' x '.join(map(str, shape))}" if len(common) > 1 else "")
        found += [(name, row["p"], row["hidden"]) for row in same if row["hidden"] is not None]
    return found


def _zero(rows: Sequence[Row]) -> Lines:
    return _collect((f"stage {row['stage']}", row["p"], row["bytes_per_weight"]) for row in rows)


PARTS: dict[str, Callable[[Sequence[Row]], Lines]] = {
    "bus": _bus, "model": _model, "pair": _pair, "overlap": _overlap, "zero": _zero,
}  # fmt: skip
"""Part of the recording -> what makes lines of its rows."""
