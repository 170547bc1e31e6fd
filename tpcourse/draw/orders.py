"""The order of a program, and timelines below each other: recorded ones, or made ones."""

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes

from tpcourse.draw.hiding import NONE
from tpcourse.draw.lanes import WIDTH, timeline
from tpcourse.draw.palette import plot_axes, styled
from tpcourse.timeline.span import spans_of

Timeline = tuple[Iterable[Any], float | None]
GAP = 0.03  # between two products in a row
ORDER_TITLE = "products (solid), and calls (hatched) from where they begin to where they are waited for"


@styled
def order(rows: Iterable[Any], ax: Axes | None = None) -> Axes:
    """Products and calls of each rank in the order of its program, from spans of `tpcourse.timeline.order`.

    There is no clock in it, so it is the same on every machine. Raises: ValueError for no span.
    """
    spans = [s._replace(begin_s=s.begin_s + GAP, end_s=s.end_s - GAP) for s in spans_of(rows)]
    ax = timeline(spans, ax)
    ax.set_label("order")
    ax.set_title(ORDER_TITLE)
    ax.set_xlabel("the order of the program")
    ax.set_xticks([])
    return ax


@styled
def timelines(found: Mapping[str, Timeline], title: str = "", ax: Axes | None = None) -> Axes:
    """Several timelines on one scale, each with its name: name -> spans and E, as `recorded_spans` gives them.

    Those without spans are left out; if none has any, a title without a plot says that no run was recorded.
    """
    known = {name: (spans_of(spans), E) for name, (spans, E) in found.items() if spans}
    heights = [0.9 + 0.56 * len({span.rank for span in spans}) for spans, _ in known.values()]
    ax = plot_axes(ax, "timelines", WIDTH, 0.4 + sum(heights) if known else 0.5)
    ax.set_title(title if known else NONE, pad=18 if known else None)
    ax.set_axis_off()
    top, panels = 1.0, []
    for height, (name, (spans, E)) in zip(heights, known.items(), strict=True):
        share = height / sum(heights)
        panel = timeline(spans, ax.inset_axes((0, top - share + 0.3 * share, 1, 0.5 * share)), hidden=E)
        panel.set_title(f"{name}: {panel.get_title(loc='left')}")
        panels.append(panel)
        top -= share
    right = max((panel.get_xlim()[1] for panel in panels), default=1.0)
    for panel in panels:
        panel.set(xlim=(-0.005 * right, right), xlabel="time (ms)" if panel is panels[-1] else "")
    return ax
