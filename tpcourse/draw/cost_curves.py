"""Times of collectives against their size: measured, fitted, predicted; and where one algorithm passes another.

Colour is rank everywhere, so these curves are black and grey; collectives and algorithms differ by mark and by dash.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from tpcourse.costs import ALGORITHMS, crossing, find_link, seconds
from tpcourse.draw.palette import FAINT, PAPER, SMALL, TEXT, bytes_text, plot_axes, styled, tint

if TYPE_CHECKING:
    from tpcourse.costs import Fit, Measurement, Recording
    from tpcourse.costs.links import Line

MARKS = {
    "all_reduce": "o", "all_gather": "s", "reduce_scatter": "^", "broadcast": "D", "reduce": "v", "all_to_all": "P",
}  # fmt: skip
ALGORITHM_MARKS = {"naive": "x", "tree": "^", "ring": "o", "halving_doubling": "D"}
DASHES = {"naive": (0, (1, 1.5)), "tree": (0, (5, 2)), "ring": "-", "halving_doubling": (0, (6, 2, 1, 2))}
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
WIDTH, HEIGHT = 8.4, 4.2


def seconds_text(value: float) -> str:
    """Seconds in the unit that fits: 53 µs, 1.2 ms, 3 s."""
    unit, name = next(((u, n) for u, n in UNITS if value >= 0.9995 * u), UNITS[-1])
    return f"{value / unit:,.0f} {name}" if value >= 999.5 * unit else f"{value / unit:.3g} {name}"


@styled
def cost_fit(
    measured: Sequence["Measurement"],
    fits: Mapping[str, "Fit"],
    unseen: Sequence["Measurement"] = (),
    recorded: "Recording | None" = None,
    ax: Axes | None = None,
) -> Axes:
    """Time against size, both logarithmic: measured points (filled), their fitted lines, and sizes that were not
    fitted (hollow). A recorded run is drawn in grey beside it, with lines of its own.

    Raises: ValueError for no measurement.
    """
    from tpcourse.costs import fit_each

    if not measured:
        raise ValueError("0 measurements: give at least one, and the fits that belong to them")
    ax = plot_axes(ax, "cost fit", WIDTH, HEIGHT)
    if recorded is not None:
        here = [m for m in recorded.measured if m.op in fits]
        _series(ax, here, fit_each(here), [m for m in recorded.unseen if m.op in fits], FAINT)
    _series(ax, measured, fits, unseen, TEXT)
    _log_axes(ax, "size of the whole array")
    _legend(ax, fits, bool(unseen), recorded)
    return ax


def _legend(ax: Axes, ops: Iterable[str], left_out: bool, recorded: "Recording | None") -> None:
    point: dict[str, Any] = {"color": TEXT, "markersize": 5, "linestyle": "none"}
    for op in ops:
        ax.plot([], [], MARKS[op], label=op, **point)
    ax.plot([], [], color=TEXT, linewidth=1.2, label="fitted line")
    if left_out:
        ax.plot([], [], "o", markerfacecolor=PAPER, label="not fitted", **point)
    if recorded is not None:
        ax.plot([], [], color=FAINT, linewidth=2.5, label=f"recorded:\n{recorded.machine.replace(', ', chr(10))}")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _series(
    ax: Axes, measured: Sequence["Measurement"], fits: Mapping[str, "Fit"], unseen: Sequence["Measurement"], ink: str
) -> None:
    """Points and lines of one machine."""
    style: dict[str, Any] = {"color": ink, "markersize": 5, "linestyle": "none"}
    for op, fit in fits.items():
        mine, other = ([m for m in part if m.op == op] for part in (measured, unseen))
        sizes = _spread(*(m.num_bytes for m in (*mine, *other)))
        ax.plot(sizes, [fit.seconds(n) for n in sizes], color=ink, linewidth=1.0, gid="line", zorder=1)
        ax.plot([m.num_bytes for m in mine], [m.seconds for m in mine], MARKS[op], gid="measured", **style)
        places = [m.num_bytes for m in other], [m.seconds for m in other]
        ax.plot(*places, MARKS[op], markerfacecolor=PAPER, gid="not fitted", **style)


@styled
def bandwidths(measured: Sequence["Measurement"], ax: Axes | None = None) -> Axes:
    """Bandwidth against size: bytes of the array a second (algorithm, dotted) and on a rank's link (bus, solid).

    Raises: ValueError for no measurement.
    """
    if not measured:
        raise ValueError("0 measurements: give at least one")
    ax = plot_axes(ax, "bandwidths", WIDTH, HEIGHT)
    for op in dict.fromkeys(m.op for m in measured):
        mine = sorted((m for m in measured if m.op == op), key=lambda m: m.num_bytes)
        sizes = [m.num_bytes for m in mine]
        algorithm, bus = [m.algorithm_bytes_per_s for m in mine], [m.bus_bytes_per_s for m in mine]
        ax.plot(sizes, algorithm, MARKS[op], linestyle=":", color=FAINT, markersize=4, gid="algorithm")
        ax.plot(sizes, bus, MARKS[op], linestyle="-", color=TEXT, markersize=5, label=op, gid="bus")
    ax.plot([], [], color=TEXT, label="bus bandwidth")
    ax.plot([], [], color=FAINT, linestyle=":", label="algorithm bandwidth")
    _log_axes(ax, "size of the whole array")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{bytes_text(value)}/s"))
    ax.set_ylabel("bandwidth")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


@styled
def algorithm_times(
    p: int,
    link: "str | Line",
    measured: Mapping[str, Mapping[int, float]] | None = None,
    op: str = "all_reduce",
    ax: Axes | None = None,
) -> Axes:
    """Time of each algorithm of an operation on p ranks by the model, against size; where the ring passes the tree is
    marked. `measured` adds points: algorithm -> bytes -> seconds.

    Raises: ValueError as `costs.seconds`, and for one rank.
    """
    if p < 2:
        raise ValueError(f"p = {p} ranks send nothing: give 2 or more")
    names = [name for of, name in ALGORITHMS if of == op]
    seconds(op, 1, p, link, names[0] if names else "")  # raises for what is unknown, with the names
    ax, cross = plot_axes(ax, "algorithm times", WIDTH, HEIGHT), _cross(op, p, link, names)
    points = [n for row in (measured or {}).values() for n in row]
    sizes = _spread(*_range(link, points, cross))
    for name in names:
        _curve(ax, name, sizes, [seconds(op, n, p, link, name) for n in sizes])
        _points(ax, name, (measured or {}).get(name, {}))
    if cross:
        _mark(ax, cross)
    _log_axes(ax, "size of the whole array")
    ax.set_title(f"{op} on {p} ranks" + ("; points are measured" if points else ""))
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def _curve(ax: Axes, name: str, sizes: Sequence[float], times: Sequence[float]) -> None:
    ax.plot(sizes, times, linestyle=DASHES[name], color=TEXT, linewidth=1.4, label=_words(name), gid="algorithm")


def _mark(ax: Axes, cross: float) -> None:
    """A line at the size from which the ring is faster."""
    ax.axvline(cross, color=FAINT, linewidth=0.8, gid="crossing")
    text, place = f"by the model: ring\nfaster from {bytes_text(cross)}", ax.get_xaxis_transform()
    ax.text(cross * 1.15, 0.03, text, transform=place, va="bottom", size=SMALL)


def _points(ax: Axes, name: str, row: Mapping[int, float]) -> None:
    if row:
        style: dict[str, Any] = {"color": TEXT, "markerfacecolor": tint(TEXT, 0.25), "markersize": 6}
        label, mark = f"{_words(name)}, run", ALGORITHM_MARKS.get(name, "o")
        ax.plot(list(row), list(row.values()), mark, linestyle="none", gid="measured", label=label, **style)


def _words(name: str) -> str:
    return name.replace("_", " and ")


def _cross(op: str, p: int, link: "str | Line", names: Sequence[str]) -> float:
    """Where the ring passes the tree, 0 where it is never slower or one of the two is not there."""
    return crossing(p, link, op=op) if {"ring", "tree"} <= set(names) else 0.0


def _range(link: "str | Line", points: Sequence[int], cross: float) -> tuple[float, float]:
    """Sizes to show: those that were measured, else three decades around the crossing or around alpha / beta."""
    if points:
        return min(points) / 1.5, 1.5 * max(points)
    line = find_link(link)
    middle = cross or (line.alpha_s / line.beta_s_per_byte) or 1e6
    return middle / 1e3, middle * 1e3


def _spread(*sizes: float) -> list[float]:
    """60 sizes from the least to the largest, evenly on a logarithmic scale."""
    low, high = min(sizes), max(sizes)
    return [low * (high / low) ** (step / 59) for step in range(60)]


def _log_axes(ax: Axes, xlabel: str) -> None:
    ax.set(xscale="log", yscale="log", xlabel=xlabel, ylabel="time")
    for axis, limits, text in ((ax.xaxis, ax.get_xlim(), bytes_text), (ax.yaxis, ax.get_ylim(), seconds_text)):
        subs = (1.0,) if limits[1] > 50 * limits[0] else (1.0, 2.0, 5.0)  # more ticks where there are few decades
        axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=8))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _, text=text: text(value)))
    ax.grid(True, color=tint(FAINT, 0.25), linewidth=0.6)
    ax.set_axisbelow(True)
