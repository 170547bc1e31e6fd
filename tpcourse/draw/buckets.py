"""Gradients in buckets: which part of them left when, and what the size of a bucket does to a step."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from tpcourse.draw.palette import FAINT, SMALL, TEXT, bytes_text, colour, hatch, plot_axes, styled, tint
from tpcourse.draw.rounds import Logs, events_of

if TYPE_CHECKING:
    from tpcourse.ledger import Event

WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
MOST_ROWS = 24


class Part(NamedTuple):
    """The bytes first .. first + size - 1 of a rank's gradients, and when they left: 0 for its first call."""

    rank: int
    order: int
    first: int
    size: int


def parts(log: Logs) -> list[Part]:
    """The all-reduces of floating-point numbers as parts of each rank's gradients, in the order of the calls.

    A part lies where it lies in its array; the arrays of several dtypes are laid end to end. Parts that would
    lie on top of each other, because every gradient is an array of its own, are laid end to end as well.
    Raises: ValueError for a log without such calls.
    """
    events = [event for event in events_of(log) if event.op == "all_reduce" and event.dtype in WIDTHS]
    if not events:
        raise ValueError("0 all_reduce calls of gradients in this log: put backward inside `with ledger() as log:`")
    found = []
    for rank in sorted({event.rank for event in events}):
        mine = sorted((event for event in events if event.rank == rank), key=lambda event: event.begin_s)
        sizes = [event.numel * WIDTHS[event.dtype] for event in mine]
        found += [Part(rank, k, first, sizes[k]) for k, first in enumerate(_firsts(mine, sizes))]
    return found


def _firsts(events: list["Event"], sizes: list[int]) -> list[int]:
    """Where each part begins."""
    ends: dict[str, int] = {}
    for event in events:
        end = (event.offset + event.numel) * WIDTHS[event.dtype]
        ends[event.dtype] = max(ends.get(event.dtype, 0), end)
    if sum(ends.values()) < sum(sizes):  # parts share memory, or are arrays of their own
        return [sum(sizes[:k]) for k in range(len(sizes))]
    bases = {dtype: sum(list(ends.values())[:k]) for k, dtype in enumerate(ends)}
    return [bases[event.dtype] + event.offset * WIDTHS[event.dtype] for event in events]


@styled
def bucket_order(log: Logs, ax: Axes | None = None) -> Axes:
    """Which part of the gradients left first, second, ...: a row for each call, a strip in it for each rank.

    Equal steps on all ranks are what averaging needs. From the last layer (left) to the first (right).
    Raises: ValueError for a log without all-reduces of gradients.
    """
    found = parts(log)
    ranks = sorted({part.rank for part in found})
    rows = min(MOST_ROWS, 1 + max(part.order for part in found))
    end = max(part.first + part.size for part in found)
    ax = plot_axes(ax, "bucket order", 7.6, 1.3 + 0.3 * rows)
    for part in (part for part in found if part.order < rows):
        height = 0.8 / len(ranks)
        corner = (part.first, part.order - 0.4 + height * ranks.index(part.rank))
        ax.add_patch(Rectangle(corner, part.size, height, linewidth=0.8, gid="bucket", **_look(part.rank)))
    ax.set(xlim=(-0.01 * end, 1.01 * end), ylim=(rows - 0.4, -0.6), ylabel="call")
    ax.set_yticks(range(rows), [str(k + 1) for k in range(rows)])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value) if value else "0"))
    more = 1 + max(part.order for part in found) - rows
    ax.set_xlabel("bytes of all gradients" + (f" ({more} later calls are not drawn)" if more else ""))
    keys = [Patch(label=f"rank {rank}", **_look(rank)) for rank in ranks]
    ax.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def _look(rank: int) -> dict[str, Any]:
    """Communication of a rank: its colour, hatched."""
    return {"facecolor": tint(colour(rank), 0.55), "edgecolor": colour(rank), "hatch": hatch(rank)}


@styled
def bucket_curve(curves: Mapping[str, Mapping[str, Any]], ax: Axes | None = None) -> Axes:
    """Time of a step by the size of a bucket, over the time of the same step without communication.

    `curves` maps a machine's name to the figures of `tpcourse bench data`. The dashed line is torch's
    DistributedDataParallel in the same run; what lies above 1 is communication that backward did not hide.
    Raises: ValueError for no curve, or more than four.
    """
    if not 1 <= len(curves) <= 4:
        raise ValueError(f"{len(curves)} curves: give 1 to 4, names mapped to figures of `tpcourse bench data`")
    ax = plot_axes(ax, "bucket curve", 7.6, 3.8)
    inks = [tint(TEXT, strength) for strength in (1.0, 0.55, 0.35, 0.75)]
    for (name, figures), fill, mark in zip(curves.items(), inks, "os^D"):
        points, floor_ms = figures["curve"], figures["floor_ms"]
        sizes, over = [p["bucket_mb"] for p in points], [p["step_ms"] / floor_ms for p in points]
        ax.plot(sizes, over, f"-{mark}", color=fill, markersize=5, linewidth=1.2, label=name, gid="curve")
        ax.plot(_ends(sizes), [figures["ddp_ms"] / floor_ms] * 2, "--", color=fill, linewidth=1.2, gid="ddp")
    ax.plot([], [], "--", color=TEXT, linewidth=1.2, label="DistributedDataParallel")
    ax.axhline(1, color=FAINT, linewidth=0.8, gid="floor")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(1e6 * value)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlabel="size of a bucket (the last point: one bucket of all)", ylabel="step / step without communication")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=SMALL + 1)
    return ax


def _ends(sizes: Sequence[float]) -> list[float]:
    return [min(sizes), max(sizes)]
