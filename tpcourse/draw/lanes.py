"""A timeline with two lanes per rank: computation and communication."""

from matplotlib.axes import Axes

from tpcourse.draw.palette import PAPER, SMALL, TEXT, colour, hatch, plot_axes, styled, tint
from tpcourse.draw.rounds import Logs
from tpcourse.draw.spans import Interval, intervals, together

WIDTH = 9.0


@styled
def timeline(log: Logs, ax: Axes | None = None) -> Axes:
    """When each rank computed (solid) and communicated (hatched), from the ledger's begin and end (see `intervals`).
    A call that never ended runs to the edge, dashed. Trap: clocks of different machines do not agree.

    Raises: ValueError for a log without events.
    """
    lanes = intervals(log)
    ax = plot_axes(ax, "timeline", WIDTH, 1.15 + 0.56 * len(lanes))
    end = max((i.end_ms for lane in lanes.values() for part in lane for i in part), default=0.0) or 1e-3
    for row, (rank, lane) in enumerate(lanes.items()):
        for strength, gid, gaps in ((0.2, "free", lane.free), (1.0, "compute", lane.compute)):
            for gap in gaps:
                _block(ax, gap, row - 0.38, rank, {"facecolor": tint(colour(rank), strength), "gid": gid})
        for heap in together(lane.communication):
            for call in heap:
                _block(ax, call, row, rank, {"facecolor": "none", "hatch": hatch(rank), "gid": "communication"})
            _name(ax, heap, row + 0.18, (WIDTH - 1.2) / end)
    ax.set_yticks(range(len(lanes)), [f"rank {rank}" for rank in lanes])
    for tick, rank in zip(ax.get_yticklabels(), lanes, strict=True):
        tick.set_bbox({"boxstyle": "square,pad=0.25", "facecolor": tint(colour(rank), 0.45), "edgecolor": "none"})
    ax.set(ylim=(len(lanes) - 0.45, -0.6), xlim=(-0.005 * end, 1.005 * end), xlabel="time (ms)")
    ax.set_title("solid: computes; pale: computes, or waits for an asynchronous call; hatched: communicates")
    ax.tick_params(axis="y", length=0)
    return ax


def _block(ax: Axes, span: Interval, y: float, rank: int, look: dict[str, object]) -> None:
    edge = colour(rank) if "hatch" in look else "none"
    style = "-" if span.finished else "--"
    ax.broken_barh([(span.begin_ms, span.end_ms - span.begin_ms)], (y, 0.36), edgecolor=edge, linestyle=style, **look)


def _name(ax: Axes, heap: list[Interval], y: float, inches_per_ms: float) -> None:
    """What the calls of a heap are, where there is room for it."""
    text = " + ".join(dict.fromkeys(call.op for call in heap)) + " ..." * (not all(call.finished for call in heap))
    begin, end = heap[0].begin_ms, max(call.end_ms for call in heap)
    if (end - begin) * inches_per_ms > 0.075 * len(text) + 0.1:
        box = {"boxstyle": "round,pad=0.1", "facecolor": PAPER, "edgecolor": "none"}
        ax.text((begin + end) / 2, y, text, ha="center", va="center", size=SMALL, bbox=box, color=TEXT)
