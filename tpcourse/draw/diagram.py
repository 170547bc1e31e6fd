"""The message diagram: what a real run sent, element by element."""

from collections.abc import Mapping
from math import gcd
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Polygon, Rectangle

from tpcourse.draw.palette import (
    EMPTY,
    FAINT,
    LARGE,
    MAX_WIDTH,
    PAPER,
    SMALL,
    bytes_text,
    colour,
    hatch,
    plural,
    sheet,
    styled,
)  # fmt: skip
from tpcourse.draw.rounds import Band, Logs, Message, bands, placed, steps, unmatched
from tpcourse.draw.shapes import arrow, notes, rank_label

LEFT, HALF, MOST_CELLS = 1.0, 0.11, 16


class Layout(NamedTuple):
    """Where things are, in inches: a strip of `size` elements per rank and step."""

    ranks: list[int]
    number: int  # of rounds drawn
    pitch: float  # from one step to the next
    row: float  # from one rank to the next
    size: int  # elements in a strip
    unit: int  # elements in a cell

    def x(self, step: int) -> float:
        return LEFT + step * self.pitch

    def y(self, rank: int, element: float) -> float:
        """Upper edge of an element on a rank's strip; 0 is the top of the first strip."""
        return -self.row * (self.ranks.index(rank) + 0.84 * element / self.size)


@styled
def messages(log: Logs, ax: Axes | None = None, first_step: int = 0) -> Axes:
    """The message diagram of a run: ranks as rows, steps from left to right, on each rank its array element by element.
    Solid cells leave, hatched cells arrived; `2:4` are elements 2 and 3. Takes a log or one log per rank (see `steps`).

    Raises: ValueError for a log without events, or a first_step the run does not have.
    """
    sent, collective = placed(steps(log)), bands(log)
    total = 1 + max([m.step for m in sent] + [band.step for band in collective], default=-1)
    _require(log, first_step, total)
    layout, lines = _layout(sent, collective, first_step, total), _remarks(log, bool(sent), bool(collective))
    end = first_step + layout.number
    if layout.number < total:
        lines.append(f"Steps {first_step} to {end - 1} of {total} are drawn; first_step={end % total} shows others.")
    lines += _scale(layout)
    ax = _sheet(ax, layout, _title(sent, collective, total), lines)
    _strips(ax, layout, first_step, bool(sent))
    for m in sent:
        if first_step <= m.step < end:
            _message(ax, layout, m, m.step - first_step)
    for band in collective:
        if first_step <= band.step < end:
            _band(ax, layout, band, band.step - first_step)
    return ax


def _require(log: Logs, first_step: int, total: int) -> None:
    if not total:
        count = plural(unmatched(log)[1], "receive")
        raise ValueError(f'the log holds {count} and no send: give the logs of all ranks, ranks["log"]')
    if not 0 <= first_step < total:
        raise ValueError(f"first_step = {first_step}, but the run has {plural(total, 'step')}: choose 0 to {total - 1}")


def _sheet(ax: Axes | None, layout: Layout, title: str, lines: list[str]) -> Axes:
    """A sheet with room for title and steps above the strips, which begin at 0, and for the notes below them."""
    strips, foot = len(layout.ranks) * layout.row, 0.06 + 0.19 * len(lines)
    ax = sheet(ax, "messages", max(7.0, layout.x(layout.number) + 0.3), strips + foot + 0.7, -strips - foot)
    ax.text(0.1, 0.6, title, va="top", size=LARGE)
    notes(ax, lines, y=-strips - foot + 0.1)
    return ax


def _layout(sent: list[Message], collective: list[Band], first_step: int, total: int) -> Layout:
    ranks = sorted({r for m in sent for r in (m.src, m.dst)} | {r for b in collective for r in b.group})
    least, room = (1.45 if collective else 0.98), MAX_WIDTH - LEFT - 0.3
    count = min(total - first_step, int(room / least))
    ends = [m.first + m.num for m in sent] + [(m.lands or 0) + m.num for m in sent]
    sizes = ends + [member.num for band in collective for member in band.members]
    marks = [mark for m in sent for mark in (m.first, m.num, m.lands or 0)] + sizes
    size = max(1, *sizes)
    return Layout(
        ranks, count, min(1.7, room / count), max(0.66, min(1.0, 4.8 / len(ranks))), size,
        _unit(gcd(*marks), size),
    )  # fmt: skip


def _unit(common: int, size: int) -> int:
    """Elements in a cell: a divisor of every offset and length, as small as at most MOST_CELLS cells allow."""
    fitting = (common // k for k in range(MOST_CELLS, 0, -1) if common % k == 0 and size * k <= MOST_CELLS * common)
    return next(fitting, common)


def _scale(layout: Layout) -> list[str]:
    if layout.size > MOST_CELLS * layout.unit:
        return [f"Drawn to scale: a strip is {layout.size:,} elements."]
    return [f"One cell is {layout.unit:,} elements."] * (layout.unit > 1)


def _title(sent: list[Message], collective: list[Band], total: int) -> str:
    most = max((sum(m.bytes for m in sent if m.src == r) for r in {m.src for m in sent}), default=0)
    parts = [plural(len(sent), "message")] * bool(sent) + [plural(len(collective), "collective")] * bool(collective)
    if not sent:
        return parts[0]
    rounds = "" if collective else f" in {plural(total, 'step')}"
    return f"{' and '.join(parts)}{rounds}; a rank sends at most {bytes_text(most)} in messages"


def _remarks(log: Logs, sent: bool, collective: bool) -> list[str]:
    legend = "Solid cells leave, hatched cells arrived; colour: the rank that sends; 2:4 means elements 2 and 3."
    lines = [legend] * sent
    lines += ["Boxes: torch's own collective; its messages are not visible to us."] * collective
    sends, receives = unmatched(log)
    lines += [f"Dashed: {plural(sends, 'send')} without a receive in these logs."] * (sends > 0)
    return lines + [f"Not drawn: {plural(receives, 'receive')} without a send in these logs."] * (receives > 0)


def _strips(ax: Axes, layout: Layout, first_step: int, strips: bool) -> None:
    """Steps' numbers, ranks, and each rank's array at every step as an empty strip of cells."""
    for step in range(layout.number):
        middle = layout.x(step) + layout.pitch / 2
        ax.text(middle, 0.1, f"step {first_step + step}", ha="center", va="bottom", color=FAINT)
    cells, lines = layout.size // layout.unit, []
    for rank in layout.ranks:
        top, bottom = layout.y(rank, 0), layout.y(rank, layout.size)
        rank_label(ax, 0.45, (top + bottom) / 2, rank)
        ax.hlines((top + bottom) / 2, 0.78, layout.x(layout.number), color=FAINT, linewidth=0.6, zorder=0.5)
        for x in [layout.x(step) for step in range((layout.number + 1) * strips)]:
            ax.add_patch(Rectangle((x - HALF, bottom), 2 * HALF, top - bottom, facecolor=EMPTY, edgecolor=FAINT))
            inner = [layout.y(rank, e * layout.unit) for e in range(1, cells if cells <= MOST_CELLS else 0)]
            lines += [[(x - HALF, y), (x + HALF, y)] for y in inner]
    ax.add_collection(LineCollection(lines, colors=FAINT, linewidths=0.5, zorder=1.5))


def _elements(ax: Axes, layout: Layout, rank: int, x: float, first: int, num: int, look: Mapping[str, object]) -> None:
    """Cells of one half of a strip, or of a band: one rectangle for each element (or unit)."""
    whole = layout.size // layout.unit > MOST_CELLS
    for e in range(first, first + num, max(1, num) if whole else layout.unit):
        end = min(first + num, e + (num if whole else layout.unit))
        bottom = layout.y(rank, end)
        ax.add_patch(Rectangle((x, bottom), HALF, layout.y(rank, e) - bottom, linewidth=0.6, zorder=2, **look))


def _message(ax: Axes, layout: Layout, m: Message, step: int) -> None:
    """Cells that leave, cells that arrive, the ribbon and the arrow between them, and which elements they are."""
    assert m.lands is not None
    fill, start, end = colour(m.src), layout.x(step) + HALF, layout.x(step + 1) - HALF
    leave = [layout.y(m.src, m.first), layout.y(m.src, m.first + m.num)]
    arrive = [layout.y(m.dst, m.lands), layout.y(m.dst, m.lands + m.num)]
    _elements(ax, layout, m.src, start - HALF, m.first, m.num, {"facecolor": fill, "edgecolor": PAPER, "gid": "sent"})
    if not m.alone:
        hatched = {"facecolor": fill, "edgecolor": PAPER, "hatch": hatch(m.src), "gid": "arrived"}
        _elements(ax, layout, m.dst, end, m.lands, m.num, hatched)
        corners = [(start, leave[0]), (end, arrive[0]), (end, arrive[1]), (start, leave[1])]
        ax.add_patch(Polygon(corners, facecolor=fill, alpha=0.16, edgecolor="none", zorder=1))
    arrow(ax, (start, sum(leave) / 2), (end, sum(arrive) / 2), m.src, dashed=m.alone)
    box = {"boxstyle": "round,pad=0.1", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.85}
    text = f"{m.first}:{m.first + m.num}" if m.num != 1 else f"{m.first}"
    ax.text(start + 0.06, sum(leave) / 2, text, ha="left", va="center_baseline", size=SMALL, bbox=box, zorder=4)


def _band(ax: Axes, layout: Layout, band: Band, step: int) -> None:
    """A box on each rank of the group, joined by a line: its elements, the operation, the bytes it sends."""
    left, right = layout.x(step) + 0.16, layout.x(step + 1) - 0.13
    rows = [member.rank for member in band.members]
    spine = left + 0.03 * (min(rows) % 4) - 0.04
    ax.vlines(spine, layout.y(max(rows), layout.size), layout.y(min(rows), 0), color=colour(min(rows)), linewidth=3)
    for member in band.members:
        top, bottom = layout.y(member.rank, 0), layout.y(member.rank, layout.size)
        face = {"facecolor": PAPER, "edgecolor": FAINT, "zorder": 1.8}
        ax.add_patch(Rectangle((left, bottom), right - left, top - bottom, gid="band", **face))
        look = {"facecolor": colour(member.rank), "edgecolor": PAPER, "hatch": hatch(member.rank), "gid": "given"}
        _elements(ax, layout, member.rank, left + 0.06, 0, member.num, look)
        text = f"{member.op}\n{band.axis}\nsends {bytes_text(member.bytes)}"
        ax.text(left + 0.24, (top + bottom) / 2, text, va="center", size=SMALL - 0.5, zorder=4, linespacing=1.1)
