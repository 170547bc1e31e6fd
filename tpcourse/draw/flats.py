"""Weights laid end to end in flat arrays, and which rank holds which piece of them."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from tpcourse.draw.palette import FAINT, MAX_WIDTH, PAPER, SMALL, TEXT, colour, plot_axes, styled

HEIGHT = 0.5


@styled
def flat_pieces(flats: Sequence[Mapping[str, int]], p: int, ax: Axes | None = None) -> Axes:
    """A row for each flat array, given as weight -> elements: cut into p equal pieces, each of its rank's colour.

    Thick lines are the borders between weights; the zeros behind the last weight are dashed.
    Raises: ValueError for no array, a weight without elements, or p < 1.
    """
    if p < 1 or not flats or min(min(flat.values(), default=0) for flat in flats) < 1:
        raise ValueError(f"{len(flats)} flat arrays on p = {p} ranks: give weight -> elements above 0, and p from 1")
    longest = max(sum(flat.values()) for flat in flats) + p
    ax = plot_axes(ax, "flat pieces", MAX_WIDTH, 1.1 + 0.62 * len(flats))
    for row, flat in enumerate(flats):
        n = -(-sum(flat.values()) // p)
        for rank in range(p):
            look = {"facecolor": colour(rank), "edgecolor": "none", "gid": "piece"}
            ax.add_patch(Rectangle((rank * n, row - HEIGHT / 2), n, HEIGHT, **look))
        _weights(ax, row, flat, longest)
        _padding(ax, row, sum(flat.values()), p * n)
    ax.set(xlim=(-0.005 * longest, longest), ylim=(len(flats) - 0.5, -0.75), xlabel="elements")
    ax.set_yticks(range(len(flats)), [f"flat array {row}" for row in range(len(flats))])
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    keys = [Patch(facecolor=colour(rank), label=f"rank {rank}") for rank in range(p)]
    keys.append(Patch(facecolor=PAPER, edgecolor=TEXT, linestyle="--", label="padding"))
    ax.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def _weights(ax: Axes, row: int, flat: Mapping[str, int], longest: float) -> None:
    """The borders between weights, and above them the names that fit."""
    start = 0
    for name, size in flat.items():
        ax.plot([start] * 2, [row - 0.31, row + 0.31], color=TEXT, linewidth=2.0, zorder=3, gid="border")
        if size / longest * (MAX_WIDTH - 2.2) > 0.068 * len(name):
            ax.text(start + size / 2, row - HEIGHT / 2 - 0.03, name, ha="center", va="bottom", size=SMALL)
        start += size
    ax.plot([start] * 2, [row - 0.31, row + 0.31], color=TEXT, linewidth=2.0, zorder=3, gid="border")


def _padding(ax: Axes, row: int, start: int, end: int) -> None:
    """The zeros, one cell each where there is room."""
    for element in range(start, end) if end - start < 10 else []:
        ax.plot([element] * 2, [row - HEIGHT / 2, row + HEIGHT / 2], color=FAINT, linewidth=0.6)
    if end > start:
        look = {"facecolor": PAPER, "edgecolor": TEXT, "linestyle": "--", "linewidth": 1.0, "gid": "padding"}
        ax.add_patch(Rectangle((start, row - HEIGHT / 2), end - start, HEIGHT, **look))
