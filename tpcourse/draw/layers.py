"""Which layers' weights are on a rank while a step of ZeRO's third stage runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from tpcourse.draw.palette import FAINT, SMALL, TEXT, bytes_text, colour, hatch, plot_axes, styled, tint

Seen = Sequence[Sequence[tuple[int, bool]]]
"""After each operation, for each layer: bytes of whole weights that are here, and whether they are still travelling."""


@styled
def layers_here(
    steps: Mapping[str, Seen], names: Sequence[str], backward: int, rank: int = 0, ax: Axes | None = None
) -> Axes:
    """A part for each step, a line in it for each layer: its weights are here (solid), or on their way (hatched).

    Backward begins after `backward` operations. Above each part the most bytes that are here at a time.
    Raises: ValueError for no step, an empty one, or one of other layers than the names.
    """
    if not steps or not all(seen and {len(row) for row in seen} == {len(names)} for seen in steps.values()):
        raise ValueError(f"{len(steps)} steps for {len(names)} names: give each operation's bytes of every layer")
    length, pitch = max(map(len, steps.values())), len(names) + 1.4
    ax = plot_axes(ax, "layers here", 9.0, 0.8 + 0.17 * pitch * len(steps))
    ticks = {}
    for part, (title, seen) in enumerate(steps.items()):
        top = part * pitch
        ax.text(0, top - 0.8, title, va="center", weight="bold")
        most = max(sum(size for size, _ in row) for row in seen)
        ax.text(length, top - 0.8, f"at most {bytes_text(most)} at a time", ha="right", va="center", size=SMALL + 0.5)
        for line, name in enumerate(names):
            ticks[top + line] = name
            _line(ax, top + line, [row[line] for row in seen], rank)
        ax.plot([backward] * 2, [top - 0.5, top + len(names) - 0.5], ":", color=FAINT, linewidth=1.2, zorder=0.6)
        ax.text(backward, top - 0.8, " backward", va="center", size=SMALL + 0.5)
    ax.set_yticks(list(ticks), list(ticks.values()), size=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.set(xlim=(0, length), ylim=(len(steps) * pitch - 1.6, -1.5), xlabel="operations of the step")
    here, coming = {"facecolor": colour(rank)}, {"facecolor": tint(colour(rank), 0.15), "hatch": hatch(rank)}
    keys = [Patch(label=text, edgecolor=TEXT, **look) for text, look in (("here", here), ("on its way", coming))]
    ax.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.0, 1.0), title=f"rank {rank}", alignment="left")
    return ax


def _line(ax: Axes, y: float, states: Sequence[tuple[int, bool]], rank: int) -> None:
    """One layer: stretches of operations with the same state."""
    bounds = [0, *(k for k in range(1, len(states)) if states[k] != states[k - 1]), len(states)]
    ax.plot([0, len(states)], [y, y], color=FAINT, linewidth=0.4, zorder=0.5)
    for begin, end in zip(bounds, bounds[1:]):
        size, coming = states[begin]
        look: dict[str, Any] = {"facecolor": colour(rank), "gid": "here"}
        if coming:
            look = {"facecolor": tint(colour(rank), 0.15), "hatch": hatch(rank), "gid": "coming"}
        if size:
            ax.broken_barh([(begin, end - begin)], (y - 0.36, 0.72), edgecolor=TEXT, linewidth=0.6, **look)
