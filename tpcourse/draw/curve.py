"""How memory rises and falls during a step, operation by operation."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from tpcourse.draw.palette import FAINT, SMALL, colour, plot_axes, styled

if TYPE_CHECKING:
    from tpcourse.memory import Peak

LINES = ("-", "--", ":", "-.")


@styled
def memory_curve(peaks: "Peak | Mapping[str, Peak]", rank: int = 0, ax: Axes | None = None) -> Axes:
    """Bytes held after each operation, one line for each peak in a mapping of name -> peak, the most of each
    marked.

    Operations are spread from 0 (the first) to 1 (the last), so that steps of different length lie together;
    the moments that the first one marked are dotted lines.

    Raises: ValueError for no peak, more than four, or one that saw no operation.
    """
    named = dict(peaks) if isinstance(peaks, Mapping) else {"": peaks}
    if not 1 <= len(named) <= len(LINES):
        raise ValueError(f"{len(named)} peaks: give one, or a mapping of 1 to {len(LINES)} names to peaks")
    most = max(seen.bytes for seen in named.values())
    if most == 0:
        raise ValueError("0 bytes in all peaks: put the step inside `with memory.peak() as seen:`")
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")) if most >= u)
    ax = plot_axes(ax, "memory over a step", 7.4, 3.2)
    for (label, seen), style in zip(named.items(), LINES):
        _line(ax, [size / unit for size in seen.curve], label, style, colour(rank))
    first = next(iter(named.values()))
    for index, moment in first.marks:
        x = index / max(1, len(first.curve) - 1)
        ax.axvline(x, color=FAINT, linestyle=":", linewidth=1)
        ax.text(x + 0.005, 1.16 * most / unit, moment, va="top", size=SMALL, color=FAINT)
    ax.set(
        xlim=(0, 1), ylim=(0, 1.18 * most / unit), xlabel="operations of the step", ylabel=f"memory ({name})"
    )
    ax.set_xticks([])
    if len(named) > 1:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def _line(ax: Axes, sizes: list[float], label: str, style: str, fill: str) -> None:
    at = [index / max(1, len(sizes) - 1) for index in range(len(sizes))]
    ax.plot(at, sizes, style, color=fill, drawstyle="steps-post", label=label, gid="curve")
    peak = max(range(len(sizes)), key=lambda index: sizes[index])
    ax.plot(at[peak], sizes[peak], "o", color=fill, markersize=4)
    ax.annotate(f"{sizes[peak]:.3g}", (at[peak], sizes[peak]), (4, 3), textcoords="offset points", size=SMALL)
