"""Logs to draw and a look at what was drawn, for the other tests; and proofs that these helpers notice faults."""

import matplotlib as mpl
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from tpcourse.draw.algorithms import play
from tpcourse.draw.palette import STYLE
from tpcourse.ledger import Event, Log


def event(rank: int, op: str, begin_s: float, end_s: float | None, **more) -> Event:
    """An event with the attributes a test does not care about filled in."""
    num_bytes = 4 * more.get("numel", 4)
    defaults = {
        "seq": 1, "axis": "world", "group": (0, 1), "peer": None, "shape": (4,), "dtype": "float32", "numel": 4,
        "offset": 0, "splits": None, "reduction": None, "bytes_sent": num_bytes if op == "send" else 0,
        "bytes_received": 0, "is_async": False, "line": "line 1", "function": "f",
    }  # fmt: skip
    return Event(rank=rank, op=op, begin_s=begin_s, end_s=end_s, **{**defaults, **more})


def log_of(algorithm: str, p: int, n: int) -> list[Log]:
    """The logs that p ranks would write if they ran an algorithm's rounds with isend, irecv and two waits."""
    logs: list[list[Event]] = [[] for _ in range(p)]
    for number, moves in enumerate(play(algorithm, p, n)[1]):
        for src, dst in sorted({(m.src, m.dst) for m in moves}):
            mine = [m for m in moves if (m.src, m.dst) == (src, dst)]
            same = {"group": tuple(range(p)), "numel": len(mine), "shape": (len(mine),), "is_async": True}
            first, lands = min(m.element for m in mine), min(m.lands for m in mine)
            same["seq"] = 1 + sum(e.op == "send" and e.peer == dst for e in logs[src])
            logs[src].append(event(src, "send", number, number + 0.9, peer=dst, offset=first, **same))
            logs[dst].append(event(dst, "recv", number + 0.1, number + 0.9, peer=src, offset=lands, **same))
    return [Log(sorted(events, key=lambda e: e.begin_s)) for events in logs]


def collectives(op: str, groups: list[tuple[int, ...]], axis: str, calls: int = 1, numel: int = 4) -> list[Log]:
    """Logs of torch's own collectives on disjoint groups."""
    return [
        Log([
            event(rank, op, k, k + 0.5, seq=k + 1, axis=axis, group=group, numel=numel, bytes_sent=6 * numel)
            for k in range(calls)
        ])
        for group in groups
        for rank in group
    ]  # fmt: skip


def drawn(ax: Axes) -> FigureCanvasAgg:
    """Draw the picture as it will be saved."""
    with mpl.rc_context(STYLE):
        canvas = FigureCanvasAgg(ax.figure)
        canvas.draw()
    return canvas


def faults(ax: Axes) -> list[str]:
    """Pairs of texts that overlap, and texts that leave the figure."""
    canvas = drawn(ax)
    boxes = [(t.get_text(), t.get_window_extent(canvas.get_renderer())) for t in _texts(ax) if t.get_text().strip()]
    (width, height), found = canvas.get_width_height(), []
    for number, (text, box) in enumerate(boxes):
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height:
            found.append(f"{text!r} leaves the figure")
        found += [f"{text!r} overlaps {other!r}" for other, second in boxes[:number] if _overlap(box, second)]
    return found


def _texts(ax: Axes) -> list[Text]:
    """Every text that is drawn: not the ticks outside the limits."""
    if not ax.axison:
        return list(ax.texts)
    ticks = [tick.label1 for axis in (ax.xaxis, ax.yaxis) for tick in axis._update_ticks()]
    legend = ax.get_legend()
    keys = [*legend.get_texts(), legend.get_title()] if legend else []
    return [*ax.texts, *ticks, *keys, ax.xaxis.label, ax.yaxis.label, ax.title, ax._left_title]


def _overlap(a, b) -> bool:
    return min(a.x1, b.x1) - max(a.x0, b.x0) > 0.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 0.5


def marked(ax: Axes, gid: str) -> list:
    """Artists that carry a mark."""
    return [artist for artist in ax.get_children() if artist.get_gid() == gid]


def page() -> Axes:
    ax = Figure(figsize=(4, 2)).add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    return ax


def test_overlapping_texts_are_noticed():
    ax = page()
    ax.text(0.5, 0.5, "one")
    ax.text(0.52, 0.5, "two")
    assert faults(ax) == ["'two' overlaps 'one'"]


def test_a_text_that_leaves_the_figure_is_noticed():
    ax = page()
    ax.text(0.98, 0.5, "too far to the right")
    assert faults(ax) == ["'too far to the right' leaves the figure"]


@pytest.mark.parametrize("gap", [0.5])
def test_texts_apart_are_no_fault(gap):
    ax = page()
    ax.text(0.1, 0.5, "one")
    ax.text(0.1 + gap, 0.5, "two")
    assert faults(ax) == []
