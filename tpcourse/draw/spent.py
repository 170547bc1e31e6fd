"""What a training step spends on its link, by tokens: tensor parallel beside data parallel, from a recorded run."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from tpcourse.draw.palette import FAINT, PAPER, TEXT, plot_axes, styled

WAYS = {"tensor": ("-", "o"), "data": ((0, (5, 2)), "s")}


@styled
def link_share(links: Mapping[str, Mapping[str, Any]], title: str = "", ax: Axes | None = None) -> Axes:
    """r = communication / computing of a step against its tokens: tensor (discs, solid) and data parallel (squares,
    dashed), a pair of curves for each link; the slowest link is black.

    Raises: ValueError for no link.
    """
    if not links:
        raise ValueError("0 links: `tpcourse bench link --record` records some")
    ax = plot_axes(ax, "spent on the link", 8.4, 3.6)
    last = len(links) - 1
    for number, (name, link) in enumerate(links.items()):
        ink = TEXT if number == last else FAINT
        tokens = [step["tokens"] for step in link["steps"]]
        for way, (dash, mark) in WAYS.items():
            ratios = [step[f"{way}_ratio"] for step in link["steps"]]
            face = ink if number in (0, last) else PAPER
            look: dict[str, Any] = {"linestyle": dash, "color": ink, "markerfacecolor": face}
            ax.plot(tokens, ratios, mark, label=f"{way}, {name}", gid=way, **look)
    ticks = sorted({step["tokens"] for link in links.values() for step in link["steps"]})
    ax.set(xscale="log", yscale="log", xlabel="tokens of a rank in a step", ylabel="r = communication / computing")
    ax.set_xticks(ticks)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.axhline(1, color=FAINT, linewidth=0.8)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    ax.set_title(title or "measured: one rank on each of two hosts")
    return ax
