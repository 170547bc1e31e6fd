"""A timeline with two lanes per rank: computation and communication."""

from collections.abc import Iterable
from typing import Any, cast

from matplotlib.axes import Axes

from tpcourse.draw.palette import PAPER, SMALL, TEXT, colour, hatch, ink, plot_axes, styled, tint
from tpcourse.draw.rounds import Logs
from tpcourse.draw.spans import Interval, Lanes, intervals, lanes_of, together
from tpcourse.timeline.span import covered, spans_of

WIDTH = 9.0
LOG_TITLE = "solid: computes; pale: computes, or waits for an asynchronous call; hatched: communicates"


@styled
def timeline(log: Logs | Iterable[Any], ax: Axes | None = None, *, hidden: float | None = None) -> Axes:
    """When each rank computed (solid, above) and communicated (hatched, below).

    From logs, by the ledger's begin and end (see `intervals`; a call that never ended runs to the edge, dashed), or
    from spans of `tpcourse.timeline` or a recording. Spans have the share of communication under computing in the
    title, and beside it the share that cost no time, if given as `hidden`: E, from wall time.

    Raises: ValueError for a log without events, or no span.
    Trap: clocks of different machines do not agree.
    """
    data: list[Any] = [log] if hasattr(log, "events") else [*cast(Iterable[Any], log)]
    is_log = not data or hasattr(data[0], "events")
    lanes = intervals(data) if is_log else lanes_of(spans_of(data))
    ax = plot_axes(ax, "timeline", WIDTH, 1.15 + 0.56 * len(lanes))
    end = max((i.end_ms for lane in lanes.values() for part in lane for i in part), default=0.0) or 1e-3
    for row, (rank, lane) in enumerate(lanes.items()):
        _draw_rank(ax, row, rank, lane, (WIDTH - 1.2) / end)
    ax.set_yticks(range(len(lanes)), [f"rank {rank}" for rank in lanes])
    for tick, rank in zip(ax.get_yticklabels(), lanes, strict=True):
        tick.set_bbox({"boxstyle": "square,pad=0.25", "facecolor": tint(colour(rank), 0.45), "edgecolor": "none"})
    ax.set(ylim=(len(lanes) - 0.45, -0.6), xlim=(-0.005 * end, 1.005 * end), xlabel="time (ms)")
    ax.set_title(LOG_TITLE if is_log else _shares(covered(data), hidden))
    ax.tick_params(axis="y", length=0)
    return ax


def _shares(shares: dict[int, float], hidden: float | None) -> str:
    """What the two ways of counting say: spans that overlap, and time that was won."""
    low, high = 100 * min(shares.values()), 100 * max(shares.values())
    text = f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"
    won = "" if hidden is None else f"; hidden, by wall time: E = {hidden:.2f}"
    return f"communication (hatched) under computing: {text} %{won}"


def _draw_rank(ax: Axes, row: int, rank: int, lane: Lanes, inches_per_ms: float) -> None:
    for strength, gid, gaps in ((0.2, "free", lane.free), (1.0, "compute", lane.compute)):
        fill = tint(colour(rank), strength)
        for gap in gaps:
            _block(ax, gap, row - 0.38, rank, {"facecolor": fill, "gid": gid})
            _name(ax, [gap], row - 0.2, inches_per_ms, {"color": ink(fill)})
    for heap in together(lane.communication):
        for call in heap:
            _block(ax, call, row, rank, {"facecolor": "none", "hatch": hatch(rank), "gid": "communication"})
        box = {"boxstyle": "round,pad=0.1", "facecolor": PAPER, "edgecolor": "none"}
        _name(ax, heap, row + 0.18, inches_per_ms, {"color": TEXT, "bbox": box})


def _block(ax: Axes, span: Interval, y: float, rank: int, look: dict[str, object]) -> None:
    edge = colour(rank) if "hatch" in look else "none"
    style = "-" if span.finished else "--"
    ax.broken_barh([(span.begin_ms, span.end_ms - span.begin_ms)], (y, 0.36), edgecolor=edge, linestyle=style, **look)


def _name(ax: Axes, heap: list[Interval], y: float, inches_per_ms: float, look: dict[str, Any]) -> None:
    """What the calls of a heap are, where there is room for it."""
    text = " + ".join(dict.fromkeys(call.op for call in heap if call.op))
    text += " ..." * (not all(call.finished for call in heap))
    begin, end = heap[0].begin_ms, max(call.end_ms for call in heap)
    if text and (end - begin) * inches_per_ms > 0.075 * len(text) + 0.1:
        ax.text((begin + end) / 2, y, text, ha="center", va="center", size=SMALL, **look)
