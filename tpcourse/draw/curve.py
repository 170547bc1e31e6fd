"""How memory rises and falls during a step, operation by operation."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes

from tpcourse.draw.palette import FAINT, SMALL, colour, plot_axes, styled, tint

if TYPE_CHECKING:
    from tpcourse.memory import Peak

LINES = (("-", 1.0), ("--", 0.75), (":", 0.9))
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


@styled
def memory_curve(peaks: "Peak | Mapping[str, Peak]", rank: int = 0, ax: Axes | None = None) -> Axes:
    """Bytes held after each operation, a line for each peak of a mapping of name -> peak, its top marked.

    Each moment that was marked begins a part of the picture; parts are equally wide, and the operations of a
    part are spread over it, so that the same parts of several steps lie together.

    Raises: ValueError for no peak, more than three, other moments in one than in another, or no bytes at all.
    """
    named = dict(peaks) if isinstance(peaks, Mapping) else {"": peaks}
    moments = _require(named)
    most = max(seen.bytes for seen in named.values())
    unit, name = next((u, n) for u, n in UNITS if most >= u)
    ax = plot_axes(ax, "memory over a step", 7.6, 3.3)
    for (label, seen), (style, strength) in zip(named.items(), LINES):
        look = {"color": tint(colour(rank), strength), "linestyle": style, "label": label}
        _line(ax, positions(seen), [size / unit for size in seen.curve], look)
    for number, moment in enumerate(moments):
        ax.axvline(number, color=FAINT, linestyle=":", linewidth=1)
        ax.text(number + 0.02, 1.2 * most / unit, moment, va="top")
    ax.set(xlim=(0, max(1, len(moments))), ylim=(0, 1.22 * most / unit), ylabel=f"memory ({name})")
    ax.set(xlabel="operations of the step", xticks=[])
    if len(named) > 1:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def _line(ax: Axes, at: list[float], sizes: list[float], look: dict[str, Any]) -> None:
    ax.plot(at, sizes, linewidth=1.3, drawstyle="steps-post", gid="curve", **look)
    top = sizes.index(max(sizes))
    ax.plot(at[top], sizes[top], "o", color=look["color"], markersize=4)
    ax.annotate(f"{sizes[top]:.3g}", (at[top], sizes[top]), (4, 3), textcoords="offset points", size=SMALL)


def positions(seen: "Peak") -> list[float]:
    """Where each point of a curve stands: part k, from one mark to the next, lies between k and k + 1."""
    bounds = [index for index, _ in seen.marks] or [0]
    ends = [*bounds[1:], len(seen.curve) - 1]
    at = []
    for index in range(len(seen.curve)):
        part = max((k for k, begin in enumerate(bounds) if index >= begin), default=0)
        at.append(part + (index - bounds[part]) / max(1, ends[part] - bounds[part]))
    return at


def _require(named: Mapping[str, "Peak"]) -> list[str]:
    """The names of the moments, which all peaks share."""
    if not 1 <= len(named) <= len(LINES):
        raise ValueError(f"{len(named)} peaks: give one, or a mapping of 1 to {len(LINES)} names to peaks")
    lists = {tuple(name for _, name in seen.marks) for seen in named.values()}
    if len(lists) > 1:
        raise ValueError(f"moments differ: {', '.join(map(str, sorted(lists)))}; mark the same ones in each step")
    if max(seen.bytes for seen in named.values()) == 0:
        raise ValueError("0 bytes in all peaks: put the step inside `with memory.peak() as seen:`")
    return list(lists.pop())
