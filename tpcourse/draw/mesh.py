"""The world as a grid of ranks, sliced into axes."""

from collections.abc import Sequence
from math import prod

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from tpcourse.draw.palette import NORMAL, TEXT, colour, ink, sheet, styled

PITCH, SIZE = 0.95, 0.56


@styled
def grid(shape: Sequence[int], names: Sequence[str], ax: Axes | None = None) -> Axes:
    """Ranks as a grid of one or two axes, `grid((2, 4), ("dp", "tp"))`, an outline around each group:
    solid for those of the last axis (a row, consecutive ranks), dashed for those of the first (a column).

    Raises: ValueError unless there are one or two axes with a name each and at least one rank.
    """
    if len(shape) != len(names) or len(shape) not in (1, 2) or min(shape, default=0) < 1:
        given = f"shape {tuple(shape)} with names {tuple(names)}"
        raise ValueError(f"{given}: give one or two sizes of at least 1, one name each")
    rows, columns = (1, *shape)[-2:]
    left, foot = 0.3, 0.3 + 0.34 * (len(shape) == 2)
    width, height = left + columns * PITCH + 1.75, foot + rows * PITCH + 0.45
    ax = sheet(ax, "grid", max(width, 4.2), height)
    sizes = " x ".join(f"{name} {size}" for name, size in zip(names, shape, strict=True))
    ax.text(0.1, height - 0.1, f"{prod(shape)} ranks: {sizes}", va="top")
    for rank in range(rows * columns):
        x, y = left + (rank % columns + 0.5) * PITCH, foot + (rows - rank // columns - 0.5) * PITCH
        fill = colour(rank)
        ax.add_patch(Rectangle((x - SIZE / 2, y - SIZE / 2), SIZE, SIZE, facecolor=fill, gid="rank", zorder=2))
        ax.text(x, y, str(rank), ha="center", va="center_baseline", size=NORMAL + 3, weight="bold", color=ink(fill))
    _groups(ax, (rows, columns), ("", *names)[-2:], left, foot)
    return ax


def _groups(ax: Axes, shape: tuple[int, int], names: Sequence[str], left: float, foot: float) -> None:
    """Outlines and names of the groups: rows, and columns where the first axis has a name."""
    rows, columns = shape
    for row in range(rows):
        y = foot + (rows - row - 0.5) * PITCH
        _outline(ax, (left + 0.05, y - 0.38), (columns * PITCH - 0.1, 0.76), "-")
        members = ", ".join(str(row * columns + c) for c in range(columns))
        ax.text(left + columns * PITCH + 0.08, y, f"{names[1]}: {members}", va="center")
    for column in range(columns if names[0] else 0):
        x = left + (column + 0.5) * PITCH
        _outline(ax, (x - 0.34, foot + 0.03), (0.68, rows * PITCH - 0.06), (0, (4, 2)))
        members = ",".join(str(r * columns + column) for r in range(rows))
        ax.text(x, foot - 0.08, f"{names[0]}: {members}", ha="center", va="top")


def _outline(ax: Axes, corner: tuple[float, float], size: tuple[float, float], line: object) -> None:
    style = {"facecolor": "none", "edgecolor": TEXT, "linewidth": 1.3, "linestyle": line, "gid": "group"}
    ax.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.12", zorder=1, **style))
