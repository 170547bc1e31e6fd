"""What splitting does to a quantity: bytes beside one device's, traffic by size, errors of right and wrong kernels."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from tpcourse.draw.bars import KINDS
from tpcourse.draw.palette import FAINT, PAPER, SMALL, TEXT, bytes_text, colour, plot_axes, styled, tint

Bytes = Mapping[str, float]
MARKS = "os^D"


@styled
def error_table(errors: Mapping[str, Mapping[str, float]], limit: float = 1e-9, ax: Axes | None = None) -> Axes:
    """Largest relative errors: a row for each kernel, a column for each tensor; dark is above the limit, and wrong.

    Raises: ValueError for no kernel, or kernels that name different tensors.
    """
    columns = {tuple(row) for row in errors.values()}
    if len(columns) != 1 or not next(iter(columns)):
        raise ValueError(f"{len(errors)} kernels with tensors {sorted(columns)}: give each kernel the same tensors")
    names = next(iter(columns))
    ax = plot_axes(ax, "errors", min(9.2, 2.9 + 0.95 * len(names)), 0.3 + 0.36 * (len(errors) + 0.6))
    for row, kernel in enumerate(errors.values()):
        for column, error in enumerate(kernel.values()):
            wrong = not error <= limit
            look = {"facecolor": TEXT if wrong else PAPER, "edgecolor": FAINT, "linewidth": 0.8}
            ax.add_patch(Rectangle((column, row), 1, 1, gid="wrong" if wrong else "right", **look))
            text = f"{error:.0e}" if error else "0"
            ax.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=PAPER if wrong else TEXT)
    for column, name in enumerate(names):
        ax.text(column + 0.5, -0.15, name, ha="center")
    ax.set(xlim=(0, len(names)), ylim=(len(errors), -0.6), xticks=[])
    ax.set_yticks([row + 0.5 for row in range(len(errors))], list(errors))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


@styled
def memory_shares(
    one_device: Bytes, on_rank: Bytes, names: tuple[str, str] = ("one device", "each rank"), ax: Axes | None = None
) -> Axes:
    """Bytes by kind on one device and on each rank of a group, and the second over the first; the last row is the sum.

    Raises: ValueError for kinds that differ, or a kind without bytes.
    """
    kinds = [kind for kind in KINDS if kind in one_device]
    if set(one_device) != set(on_rank) or len(kinds) != len(one_device) or not kinds or min(one_device.values()) <= 0:
        raise ValueError(f"kinds {sorted(one_device)} and {sorted(on_rank)}: give both the same of {', '.join(KINDS)}")
    rows = [(kind, one_device[kind], on_rank[kind]) for kind in kinds]
    rows.append(("total", sum(one_device.values()), sum(on_rank.values())))
    ax = plot_axes(ax, "memory shares", 7.6, 0.9 + 0.46 * len(rows))
    for row, (kind, whole, part) in enumerate(rows):
        for size, fill in ((whole, "none"), (part, tint(colour(0), KINDS.get(kind, 1.0)))):
            ax.barh(row, size, 0.7, facecolor=fill, edgecolor=TEXT, linewidth=0.9)
        ax.text(max(whole, part), row, f"  {part / whole:.2f}", va="center", weight="bold", gid="share")
    ax.set(ylim=(len(rows) - 0.5, -0.6), xlim=(0, 1.1 * max(rows[-1][1:])), xlabel="memory")
    ax.set_yticks(range(len(rows)), [*kinds, "total"])
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value) if value else "0"))
    keys = [Patch(facecolor="none", edgecolor=TEXT, label=names[0]), Patch(facecolor=colour(0), label=names[1])]
    ax.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="bold: the ratio", alignment="left")
    return ax


@styled
def traffic_curve(curves: Mapping[str, Mapping[int, float]], size_name: str = "size", ax: Axes | None = None) -> Axes:
    """Bytes that a rank sends, by some size: a line for each of 1 to 4 ways.

    Raises: ValueError for no way, more than 4, or bytes that are not above 0.
    """
    if not 1 <= len(curves) <= len(MARKS) or min((b for way in curves.values() for b in way.values()), default=0) <= 0:
        raise ValueError(f"{len(curves)} ways: give 1 to {len(MARKS)} names, each with size -> bytes above 0")
    ax = plot_axes(ax, "traffic", 7.6, 2.9)
    for (name, points), strength, mark in zip(curves.items(), (1.0, 0.5, 0.75, 0.35), MARKS):
        sizes = sorted(points)
        style = {"color": tint(TEXT, strength), "markersize": 5, "linewidth": 1.3}
        ax.plot(sizes, [points[size] for size in sizes], f"-{mark}", label=name, gid="way", **style)
        at = (sizes[-1], points[sizes[-1]])
        ax.annotate(bytes_text(at[1]), at, (7, 0), textcoords="offset points", va="center", size=SMALL + 0.5)
    sizes = sorted({size for points in curves.values() for size in points})
    ax.set(xscale="log", yscale="log", xlabel=size_name, ylabel="a rank sends")
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.margins(x=0.14, y=0.15)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax
