"""A product cut over ranks: which part of each matrix, of each head and of each weight a rank has."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from tpcourse.dims import split_range
from tpcourse.draw.palette import (
    EMPTY,
    FAINT,
    LARGE,
    MAX_WIDTH,
    PAPER,
    SMALL,
    TEXT,
    colour,
    plot_axes,
    sheet,
    styled,
)  # fmt: skip
from tpcourse.draw.shapes import rank_label

if TYPE_CHECKING:
    from tpcourse.block import Shard

GAP, CARD, LEFT = 0.5, 0.13, 0.15  # inches
COLUMNS, ROWS = "by columns: a rank finishes some numbers of y", "by rows: a rank has a part of every number"
LINE: dict[str, Any] = {"edgecolor": PAPER, "linewidth": 0.8}
WHOLE: dict[str, Any] = {"facecolor": EMPTY, "edgecolor": FAINT, "linewidth": 0.8, "gid": "whole"}


class Box(NamedTuple):
    """A matrix on the sheet: lower left corner and size, in inches."""

    x: float
    y: float
    width: float
    height: float


@styled
def two_splits(N: int, D: int, F: int, p: int, ax: Axes | None = None) -> Axes:
    """x W^T on p ranks, with W^T cut by columns (above) and by rows (below): a part has the colour of its rank.

    Grey is whole on every rank. Cards that lie on each other are partial results, one on each rank, to be added up.
    Shapes: x [N, D], W^T [D, F], y [N, F]. Raises: ValueError for a size below p, or more than 8 ranks.
    """
    if not (1 <= p <= 8 and N >= 1 and min(D, F) >= p):
        raise ValueError(f"N = {N}, D = {D}, F = {F} on p = {p} ranks: give sizes of p or more, and 1 to 8 ranks")
    cards = CARD * (p - 1)
    unit = min(0.13, (MAX_WIDTH - 2 * LEFT - 2 * GAP - cards) / (D + 2 * F))
    row, above = max(D, N) * unit + 0.85, max(0.0, cards - (D - N) * unit / 2)
    ax = sheet(ax, "two splits", MAX_WIDTH, 2 * row + above + 0.35)
    for bottom, title in ((0.4, ROWS), (0.4 + row + above, COLUMNS)):
        _product(ax, (N, D, F, p), unit, bottom, by_columns=title == COLUMNS)
        top = bottom + 0.37 + max(D, N) * unit + above * (title == ROWS)
        ax.text(LEFT, top, title, size=LARGE)
    for rank in range(p):
        rank_label(ax, LEFT + 0.3 + 0.7 * rank, 0.2, rank)
    ax.text(LEFT + 0.1 + 0.7 * p, 0.2, "grey: on every rank", va="center_baseline", size=SMALL + 1)
    return ax


def _product(ax: Axes, sizes: tuple[int, int, int, int], unit: float, bottom: float, *, by_columns: bool) -> None:
    """One line: x, W^T and what comes of it."""
    N, D, F, p = sizes
    middle = bottom + 0.25 + max(D, N) * unit / 2
    y, places = [middle - height * unit / 2 for height in (N, D)], [LEFT, LEFT + D * unit + GAP]
    x = Box(places[0], y[0], D * unit, N * unit)
    weight = Box(places[1], y[1], F * unit, D * unit)
    result = Box(places[1] + F * unit + GAP, y[0], F * unit, N * unit)
    _cut(ax, x, 1 if by_columns else p, across=True, cells=D)
    _cut(ax, weight, p, across=by_columns, cells=F if by_columns else D)
    if by_columns:
        _cut(ax, result, p, across=True, cells=F)
    for rank in reversed(range(p * (not by_columns))):
        card = result._replace(x=result.x + CARD * rank, y=result.y + CARD * rank)
        ax.add_patch(Rectangle(card[:2], *card[2:], facecolor=colour(rank), gid="partial", **LINE))
    held = "$y$ [N, F/p] on each rank" if by_columns else "[N, F] on each, to be added"
    said = ("$x$ [N, D]", "$W^\\top$ [D, F]", held)
    for box, text in zip((x, weight, result), said):
        ax.text(box.x, box.y - 0.08, text, va="top", size=SMALL + 1)
    for box, sign in ((x, "×"), (weight, "=")):
        ax.text(box.x + box.width + GAP / 2, middle, sign, ha="center", va="center", size=LARGE + 3)


def _cut(ax: Axes, box: Box, p: int, *, across: bool, cells: int) -> None:
    """A matrix as p strips side by side (across) or below each other; p = 1 is whole, and grey."""
    for rank in range(p):
        start, end = (index / cells for index in split_range(cells, p, rank))
        look = {"facecolor": colour(rank), "gid": "strip", **LINE} if p > 1 else WHOLE
        if across:
            part = Box(box.x + start * box.width, box.y, (end - start) * box.width, box.height)
        else:
            part = Box(box.x, box.y + (1 - end) * box.height, box.width, (end - start) * box.height)
        ax.add_patch(Rectangle(part[:2], *part[2:], **look))


@styled
def head_cells(num_heads: int, num_kv_heads: Sequence[int], p: int, ax: Axes | None = None) -> Axes:
    """Which rank has which query heads, and for each number of K/V heads which ranks have those.

    A K/V head is as wide as the query heads that read it, and has a stripe for each rank that holds it.
    Raises: ValueError unless p divides the heads, K/V heads divide them, and one of K/V heads and p the other.
    """
    wrong = [kv for kv in num_kv_heads if num_heads % kv or (kv % p and p % kv)]
    if num_heads % p or wrong or not num_kv_heads:
        raise ValueError(f"{num_heads} heads with {[*num_kv_heads]} K/V heads on p = {p} ranks do not divide evenly")
    rows = [(num_heads, "query heads"), *((kv, f"{kv} K/V head" + "s" * (kv > 1)) for kv in num_kv_heads)]
    left, pitch = 1.3, 0.5
    unit = (MAX_WIDTH - left - 0.15) / num_heads
    ax = sheet(ax, "heads", MAX_WIDTH, pitch * len(rows) + 0.55)
    for row, (count, name) in enumerate(rows):
        y = 0.5 + pitch * (len(rows) - 1 - row)
        ax.text(0.1, y + 0.16, name, va="center_baseline")
        width = unit * num_heads / count
        for head in range(count):
            ranks = range(head * p // count, -(-(head + 1) * p // count))
            _head(ax, Box(left + head * width, y, width - 0.03, 0.32), ranks)
    for rank in range(p):
        rank_label(ax, left + 0.3 + 0.7 * rank, 0.2, rank)
    return ax


def _head(ax: Axes, box: Box, ranks: Sequence[int]) -> None:
    part = box.height / len(ranks)
    for number, rank in enumerate(ranks):
        corner = (box.x, box.y + box.height - (number + 1) * part)
        ax.add_patch(Rectangle(corner, box.width, part, facecolor=colour(rank), edgecolor="none", gid="stripe"))
    ax.add_patch(Rectangle(box[:2], box.width, box.height, facecolor="none", edgecolor=TEXT, linewidth=0.8, gid="head"))


@styled
def weight_pieces(shards: Sequence[Mapping[str, "Shard"]], ax: Axes | None = None) -> Axes:
    """Where each weight of a `block.GPT` lies, from each rank's `model.shards`: a bar is the whole weight.

    A piece has the colour of its rank; ranks that hold the same piece share its height. The first block stands for all.
    Raises: ValueError for no rank.
    """
    if not shards:
        raise ValueError("0 ranks: give model.shards of each rank, in their order")
    names = [name for name in shards[0] if not name.startswith("blocks.") or name.startswith("blocks.0.")]
    ax = plot_axes(ax, "weight pieces", MAX_WIDTH, 0.75 + 0.27 * len(names))
    for row, name in enumerate(names):
        shard = shards[0][name]
        _pieces(ax, row, [each[name] for each in shards])
        ax.text(1.02, row, shard.layout, va="center", size=SMALL + 0.5)
        ax.text(1.22, row, f"{list(shard.shape)}", va="center", size=SMALL + 0.5)
    ax.set(xlim=(0, 1.42), ylim=(len(names) - 0.5, -0.6), xlabel="rows or columns of the whole weight", xticks=[])
    ax.xaxis.set_label_coords(0.5 / 1.42, -0.02)
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(axis="y", length=0)
    ax.spines[:].set_visible(False)
    keys = [Patch(facecolor=colour(rank), label=f"rank {rank}") for rank in range(len(shards))]
    ax.legend(handles=keys, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(shards), borderaxespad=1.6)
    return ax


def _pieces(ax: Axes, row: int, shards: Sequence["Shard"]) -> None:
    """One weight: its pieces by where they begin, each with the ranks that hold it."""
    holders: dict[tuple[int, int], list[int]] = {}
    for rank, shard in enumerate(shards):
        for piece in shard.pieces:
            holders.setdefault((piece.start, piece.end), []).append(rank)
    length = shards[0].shape[shards[0].dim]
    for (start, end), ranks in holders.items():
        height = 0.76 / len(ranks)
        for number, rank in enumerate(ranks):
            corner = (start / length, row - 0.38 + number * height)
            ax.add_patch(Rectangle(corner, (end - start) / length, height, facecolor=colour(rank), gid="piece", **LINE))


