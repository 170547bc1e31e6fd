"""How long a layer or a model takes when it is split, over the time on one device."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from tpcourse.draw.palette import FAINT, PAPER, SMALL, TEXT, plot_axes, styled, tint

ALONE = "one device"
LOOKS = {
    "ours": ("o", TEXT, TEXT), "ours, tokens split": ("s", TEXT, PAPER), "torch's": ("^", FAINT, FAINT),
    "torch's, tokens split": ("v", FAINT, PAPER), "TP": ("o", TEXT, TEXT), "TP, tokens split": ("s", TEXT, PAPER),
}  # fmt: skip
"""Variant of `tpcourse bench tensor` -> mark, edge, fill; a model's variants are marked as a layer's are."""


class Row(NamedTuple):
    """One size on one machine: p ranks, and milliseconds by variant."""

    name: str
    p: int
    ms: Mapping[str, float]


def rows_of(figures: Mapping[str, Any]) -> list[Row]:
    """The sizes in figures of `tpcourse bench tensor`: of its "mlp", "block" and "model", whichever are there."""
    found = [
        Row(f"{part}, h {row['D']}, F {row['F']}", figures["p"], row["ms"])
        for part in ("mlp", "block")
        for row in figures.get(part, ())
    ]
    if "model" in figures:
        sizes, modes = figures["model"]["sizes"], figures["model"]["modes"]
        name = f"{sizes['L']} layers, h {sizes['D']}, F {sizes['F']}"
        found.append(Row(name, figures["p"], {mode: values["ms"] for mode, values in modes.items()}))
    return found


@styled
def split_times(machines: Mapping[str, Mapping[str, Any]], ax: Axes | None = None) -> Axes:
    """Time over that of one device, for each machine and size. Left of 1 is faster; the bar ends at 1/p, the ideal.

    `machines` maps a name to figures of `tpcourse bench tensor`, or some of their parts with "p".
    Raises: ValueError for no machine, or one without times.
    """
    groups = {name: rows_of(figures) for name, figures in machines.items()}
    if not groups or not all(groups.values()):
        raise ValueError(f"{len(groups)} machines: give figures of `tpcourse bench tensor`, with mlp, block or model")
    count = sum(len(rows) + 1 for rows in groups.values())
    ax, ticks, y, seen = plot_axes(ax, "split times", 8.6, 1.0 + 0.29 * count), {}, 0, set()
    for name, rows in groups.items():
        ax.text(0.0, y, f" {name}", transform=ax.get_yaxis_transform(), va="center", weight="bold", size=SMALL + 1,
                backgroundcolor=PAPER)
        for row in rows:
            y += 1
            ticks[y] = row.name
            seen |= set(_marks(ax, y, row))
        y += 1
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.set(ylim=(y - 0.5, -0.6))
    _scale(ax)
    _legend(ax, [variant for variant in LOOKS if variant in seen])
    return ax


def _scale(ax: Axes) -> None:
    """Ratios, with a line at 1."""
    ax.axvline(1, color=TEXT, linewidth=1.0, gid="one device")
    ax.set(xscale="log", xlabel="time / time of one device")
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _marks(ax: Axes, y: int, row: Row) -> list[str]:
    """A grey bar from 1/p to 1, and a mark for each variant; returns the variants."""
    ax.barh(y, 1 - 1 / row.p, 0.62, 1 / row.p, facecolor=tint(FAINT, 0.25), edgecolor="none", gid="gain")
    shown = [variant for variant in row.ms if variant in LOOKS]
    for variant in shown:
        mark, edge, fill = LOOKS[variant]
        style = {"color": edge, "markerfacecolor": fill, "markersize": 6, "linestyle": ""}
        ax.plot(row.ms[variant] / row.ms[ALONE], y, mark, gid="ratio", **style)
    return shown


def _legend(ax: Axes, variants: Sequence[str]) -> None:
    """One key for variants that look alike."""
    named: dict[tuple[str, str, str], str] = {}
    for variant in variants:
        named.setdefault(LOOKS[variant], variant)
    keys = [
        Line2D([], [], marker=mark, color=edge, markerfacecolor=fill, linestyle="", label=name)
        for (mark, edge, fill), name in named.items()
    ]
    ax.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.0, 1.0))
