"""What each rank holds, element by element: before and after a collective, and in each step of an algorithm."""

from collections import defaultdict
from typing import Any

from matplotlib.axes import Axes

from tpcourse.draw.algorithms import Move
from tpcourse.draw.palette import LARGE, MAX_WIDTH, TEXT, sheet, styled
from tpcourse.draw.shapes import arrow, cell, notes, rank_label
from tpcourse.draw.symbols import Cell, Holding, holdings, origins, values

LEFT, HEIGHT, PITCH, MOST = 0.8, 0.3, 0.42, 16
Drawn = list[list[tuple[tuple[int, ...], str]]]  # by rank: (ranks it came from, text) of each element


@styled
def before_after(before: Any, after: Any, n: int | None = None, root: int = 0, ax: Axes | None = None) -> Axes:
    """What each rank holds before and after: of an operation, `before_after("all_gather", 4)`, or of real tensors,
    `before_after(ranks["x"], ranks["y"])`, coloured by the rank they came from (see `holdings`, `origins`).

    Raises: ValueError for an unknown operation, for numbers of ranks that differ, or for more than 16 elements.
    """
    if isinstance(before, str):
        first, last = holdings(before, after, n, root)
        _check_width(first + last)
        return _pair(ax, _symbols(first), _symbols(last), before, _legend(first + last, len(first)))
    old, new = [values(x) for x in before], [values(x) for x in after]
    if len(old) != len(new) or not old:
        raise ValueError(f"{len(old)} ranks before and {len(new)} after: give one tensor per rank, of the same ranks")
    longest = max(map(len, old + new))
    more = [f"The first {MOST} of {longest:,} elements are drawn."] if longest > MOST else []
    own: Drawn = [[((rank,), _number(v)) for v in row[:MOST]] for rank, row in enumerate(old)]
    cells: Drawn = [
        [(ranks, _number(v)) for ranks, v in zip(found[:MOST], row[:MOST], strict=True)]
        for found, row in zip(origins(old, new), new, strict=True)
    ]
    return _pair(ax, own, cells, "", more + _colours(cells))


@styled
def exchange(state: Holding, moves: list[Move], title: str = "", ax: Axes | None = None) -> Axes:
    """What each rank holds, with one arrow for each element that travels next. Raises ValueError above 16 elements."""
    _check_width(state)
    n, p = len(state[0]), len(state)
    width = min(0.44, (MAX_WIDTH - LEFT - 0.1) / n / 1.6)
    lines = _legend(state, p) + ["An arrow that ends in +: the receiver adds."] * any(m.adds for m in moves)
    height = p * 0.52 + 0.76 + 0.19 * 3  # room for three notes, so that the steps of one run are equally high
    ax = sheet(ax, "exchange", max(7.2, LEFT + 1.6 * n * width + 0.1), height)
    ax.text(0.1, height - 0.12, title, va="top", size=LARGE)
    top = height - 0.66 - HEIGHT
    for rank, row in enumerate(_symbols(state)):
        rank_label(ax, 0.4, top - 0.52 * rank + HEIGHT / 2, rank)
        for column, (ranks, text) in enumerate(row):
            cell(ax, LEFT + 1.6 * width * column, top - 0.52 * rank, (width, HEIGHT), ranks, text)
    _arrows(ax, moves, width, top + HEIGHT / 2)
    notes(ax, lines, y=0.1 + 0.19 * (3 - len(lines)))
    return ax


def _arrows(ax: Axes, moves: list[Move], width: float, middle: float) -> None:
    """One arrow per element: within a column in the gap beside it, each with its own bulge; else behind the cells."""
    beside: dict[int, int] = defaultdict(int)
    for m in moves:
        down, aside = (1 if m.dst > m.src else -1), m.lands - m.element
        left, right = LEFT + width * 1.6 * m.element, LEFT + width * 1.6 * m.lands
        shift = 0.0 if aside == 0 else 0.07 * down
        start = (left + width * (aside >= 0), middle - 0.52 * m.src - 0.05 * down * (aside == 0) + shift)
        end = (right + width * (aside <= 0), middle - 0.52 * m.dst + 0.05 * down * (aside == 0) + shift)
        bulge = (0.1 + 0.045 * (beside[m.element] % 4)) * min(1, width / 0.44)
        bend = -down * 2 * bulge / (0.52 * abs(m.dst - m.src) - 0.1) if aside == 0 else 0.0
        arrow(ax, start, end, m.src, bend, behind=aside != 0)
        if m.adds:
            ax.text(end[0] + 0.06, end[1] - 0.1 * down, "+", ha="center", va="center", weight="bold", zorder=4)
        beside[m.element] += 1


def _pair(ax: Axes | None, before: Drawn, after: Drawn, op: str, lines: list[str]) -> Axes:
    """Two panels, and an arrow with the operation's name between them."""
    counts = [max(1, *(len(row) for row in part)) for part in (before, after)]
    longest = max((len(text) for row in before + after for _, text in row), default=1)
    gap, p = 1.45 if op else 0.9, len(before)
    width = min(max(0.44, 0.085 * longest + 0.1), (MAX_WIDTH - LEFT - gap - 0.1) / sum(counts))
    height = p * PITCH + 0.62 + 0.19 * len(lines)
    starts = (LEFT, LEFT + counts[0] * width + gap)
    ax = sheet(ax, "before and after", max(6.8, starts[1] + counts[1] * width + 0.1), height)
    top = height - 0.46 - HEIGHT
    for x, rows, name in zip(starts, (before, after), ("before", "after"), strict=True):
        ax.text(x, height - 0.12, name, va="top", size=LARGE)
        for rank, row in enumerate(rows):
            for column, (ranks, text) in enumerate(row):
                cell(ax, x + column * width, top - PITCH * rank, (width, HEIGHT), ranks, text)
    for rank in range(p):
        rank_label(ax, 0.4, top - PITCH * rank + HEIGHT / 2, rank)
    _between(ax, starts[1] - gap, gap, top + HEIGHT / 2 - PITCH * (p - 1) / 2, op)
    notes(ax, lines)
    return ax


def _between(ax: Axes, x: float, gap: float, y: float, op: str) -> None:
    style = {"arrowstyle": "-|>", "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (x + gap - 0.12, y), (x + 0.12, y), arrowprops={**style, "color": TEXT})
    ax.text(x + gap / 2, y + 0.07, op, ha="center", va="bottom")


def _symbols(state: Holding) -> Drawn:
    """Texts of symbolic cells: a0, a complete sum as Σ0, a sum of some ranks as 2 of 4."""
    return [[((), "") if c is None else (c.ranks, _text(c, len(state))) for c in row] for row in state]


def _text(c: Cell, p: int) -> str:
    if len(c.ranks) == 1:
        return str(c)
    return f"Σ{c.element}" if len(c.ranks) == p else f"{len(c.ranks)} of {p}"


def _legend(state: Holding, p: int) -> list[str]:
    found = [c for row in state for c in row if c]
    lines = ["a0: element 0 of rank 0's array, b0: of rank 1's."]
    if any(len(c.ranks) > 1 for c in found):
        lines.append(f"Stripes: a sum, one stripe for each rank in it. Σ0: element 0 summed over all {p} ranks.")
    return lines


def _colours(cells: Drawn) -> list[str]:
    found = {ranks for row in cells for ranks, _ in row}
    lines = ["Colour: the rank that held the value before."]
    if any(len(ranks) > 1 for ranks in found):
        lines.append("Stripes: the sum or mean of all ranks' values.")
    return lines + ["White: no rank alone held the value."] * (() in found)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _check_width(rows: Holding) -> None:
    longest = max(map(len, rows))
    if longest > MOST:
        raise ValueError(f"{longest} elements per rank do not fit into a picture: choose n of at most {MOST}")
