"""Communication beside the product: by link and degree, and for one product as bars."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from tpcourse.costs import best_speedup
from tpcourse.draw.cost_curves import seconds_text
from tpcourse.draw.palette import FAINT, PAPER, SMALL, TEXT, colour, hatch, plot_axes, styled, tint


@styled
def link_ratios(ratios: Mapping[str, Mapping[int, float]], title: str = "", ax: Axes | None = None) -> Axes:
    """Ratio r = communication / product for each link (a row) and each number of ranks (a disc with the number in it).
    Right of r = 1 the ranks talk longer than they multiply.

    Raises: ValueError for no link, no ratio, or a ratio that is not above 0.
    """
    values = [r for row in ratios.values() for r in row.values()]
    if not values or min(values) <= 0:
        raise ValueError(f"{len(ratios)} links, ratios {values}: give link -> number of ranks -> a ratio above 0")
    ax = plot_axes(ax, "link ratios", 8.4, 1.3 + 0.42 * len(ratios))
    low, high = min(*values, 1.0) / 2, 2 * max(*values, 1.0)
    ax.axvspan(1, high, color=tint(FAINT, 0.16), linewidth=0)
    ax.axvline(1, color=TEXT, linewidth=1.0)
    for row, by_ranks in enumerate(ratios.values()):
        ax.plot([*by_ranks.values()], [row] * len(by_ranks), color=FAINT, linewidth=1.0, zorder=1)
        for p, r in by_ranks.items():
            _disc(ax, r, row, p)
    ax.set(xscale="log", xlim=(low, high), ylim=(len(ratios) - 0.4, -0.6), xlabel="r = communication / product")
    ax.set_yticks(range(len(ratios)), list(ratios))
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(LogLocator(base=10, numticks=8))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_title(title or "in a disc: ranks of the group; grey: they communicate longer than they multiply")
    return ax


def _disc(ax: Axes, r: float, row: int, p: int) -> None:
    face, mark = (TEXT, PAPER) if r <= 1 else (PAPER, TEXT)
    ax.plot(r, row, "o", markersize=15, color=TEXT, markerfacecolor=face, gid="ratio")
    ax.text(r, row, str(p), ha="center", va="center_baseline", size=SMALL + 1, color=mark)


@styled
def product_bars(product_s: float, gather_s: float, p: int, title: str = "", ax: Axes | None = None) -> Axes:
    """One product on one rank (`product_s`), and on p ranks with its all-gather (`gather_s`): one after the other, and
    perfectly overlapped. Solid computes, hatched communicates.

    Raises: ValueError for a product that takes no time, a negative gather or p < 1.
    """
    if not (product_s > 0 and gather_s >= 0 and p >= 1):
        text = f"product_s = {product_s}, gather_s = {gather_s}, p = {p}"
        raise ValueError(f"{text}: give a product above 0, a gather of 0 or more, and p of 1 or more")
    part, ax = product_s / p, plot_axes(ax, "product and gather", 8.4, 2.6)
    for place in ((0, 0.0, product_s, 0.62), (1, gather_s, part, 0.62), (2.16, 0.0, part, 0.3)):
        _bar(ax, *place, communicates=False)
    for place in ((1, 0.0, gather_s, 0.62), (1.84, 0.0, gather_s, 0.3)):
        _bar(ax, *place, communicates=True)
    ends = {"1 rank": product_s, f"{p} ranks, in turn": gather_s + part, f"{p} ranks, overlapped": max(gather_s, part)}
    longest = max(ends.values())
    for row, end in enumerate(ends.values()):
        text = seconds_text(end) + (f", {product_s / end:.2g} x" if row else "")
        ax.text(end + 0.01 * longest, row, text, va="center", size=SMALL + 0.5)
    ax.set(ylim=(2.6, -0.55), xlim=(0, 1.22 * longest), xlabel="time (solid: product, hatched: all-gather)")
    ax.set_yticks(range(3), list(ends))
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds_text(value) if value > 0 else "0"))
    ax.set_title(f"{title}r = {gather_s / part:.3g}; overlap can gain {best_speedup(gather_s / part):.3g} x")
    return ax


def _bar(ax: Axes, row: float, left: float, width: float, height: float, *, communicates: bool) -> None:
    look = {"facecolor": "none", "hatch": hatch(0)} if communicates else {"facecolor": colour(0)}
    gid = "communication" if communicates else "compute"
    ax.barh(row, width, height, left, edgecolor=colour(0), linewidth=0.8, gid=gid, **look)
