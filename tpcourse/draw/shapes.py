"""The few shapes of which the pictures are made, in inches on a sheet (see `palette.sheet`)."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.patheffects import withStroke

from tpcourse.draw.palette import EMPTY, FAINT, NORMAL, PAPER, TEXT, colour, ink


def rank_label(ax: Axes, x: float, y: float, rank: int) -> None:
    """ "rank 2" on a chip of its colour, centred at x, y."""
    ax.add_patch(Rectangle((x - 0.29, y - 0.11), 0.58, 0.22, facecolor=colour(rank), edgecolor="none", gid="chip"))
    ax.text(x, y, f"rank {rank}", ha="center", va="center_baseline", color=ink(colour(rank)), size=NORMAL - 0.5)


def cell(ax: Axes, x: float, y: float, size: tuple[float, float], ranks: Sequence[int], text: str) -> None:
    """One element, lower left corner at x, y: a stripe for each rank whose contribution it holds."""
    width, height = size
    for number, rank in enumerate(ranks):
        part = width / len(ranks)
        corner = (x + number * part, y)
        ax.add_patch(Rectangle(corner, part, height, facecolor=colour(rank), edgecolor="none", gid="stripe"))
    dashed = not ranks and not text
    style = {"linestyle": (0, (2, 2)), "edgecolor": FAINT} if dashed else {"edgecolor": TEXT}
    face = "none" if ranks else EMPTY if dashed else PAPER
    ax.add_patch(Rectangle((x, y), width, height, facecolor=face, linewidth=0.8, gid="cell", **style))
    points = min(NORMAL - 0.5, (width - 0.05) * 72 / (0.64 * max(1, len(text))))
    box = {"boxstyle": "round,pad=0.12", "facecolor": PAPER, "edgecolor": "none"} if len(ranks) > 1 else None
    fill = colour(ranks[0]) if len(ranks) == 1 else PAPER
    middle = (x + width / 2, y + height / 2)
    ax.text(*middle, text, ha="center", va="center_baseline", color=ink(fill), size=points, bbox=box)


def arrow(
    ax: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    rank: int,
    bend: float = 0.0,
    *,
    behind: bool = False,
    dashed: bool = False,
) -> None:
    """What rank sends: an arrow of its colour with a dark edge, so that yellow shows on white."""
    patch = FancyArrowPatch(
        start, end, arrowstyle="-|>,head_length=5,head_width=2.6", connectionstyle=f"arc3,rad={bend}",
        color=colour(rank), linewidth=1.6, linestyle=(0, (2, 2)) if dashed else "-",
        shrinkA=0, shrinkB=0, mutation_scale=1, zorder=0.8 if behind else 3, gid="arrow",
    )  # fmt: skip
    patch.set_path_effects([withStroke(linewidth=2.6, foreground=TEXT)])
    ax.add_patch(patch)


def notes(ax: Axes, lines: Sequence[str], x: float = 0.1, y: float = 0.1) -> None:
    """Lines of small print, the last at the sheet's foot."""
    for number, line in enumerate(reversed(lines)):
        ax.text(x, y + 0.19 * number, line, ha="left", va="bottom", size=NORMAL - 1, color=TEXT)
