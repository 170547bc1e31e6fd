"""Memory as piggy banks: how full one GPU is, or how many of them the bytes would fill."""

from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, FancyBboxPatch, Polygon, Rectangle

from tpcourse.draw.bars import KINDS
from tpcourse.draw.palette import (
    EMPTY,
    PAPER,
    SMALL,
    TEXT,
    bytes_text,
    colour,
    hatch,
    plural,
    sheet,
    styled,
    tint,
)

MOST = 60
WIDTH, HEIGHT, PANEL, FOOT = 9.2, 4.0, 5.75, 0.15
Bytes = Mapping[str, float]


class Share(NamedTuple):
    """A layer of one bank: a kind, from where to where, as parts of its capacity."""

    kind: str
    bottom: float
    top: float


def shares(held: Bytes, capacity_bytes: float) -> list[list[Share]]:
    """The layers of each bank when bytes fill one bank after the other, kind by kind; at least one bank.

    Raises: ValueError for an unknown kind, negative bytes or a capacity that is not positive.
    """
    if not capacity_bytes > 0:
        raise ValueError(
            f"capacity_bytes = {capacity_bytes}: a bank holds more than 0 bytes, for example 80e9"
        )
    for kind, size in held.items():
        if kind not in KINDS or not size >= 0:
            raise ValueError(
                f"{kind!r}: {size} bytes; kinds are {', '.join(KINDS)}, and bytes are not negative"
            )
    count = max(1, ceil(sum(held.values()) / capacity_bytes - 1e-9))
    banks: list[list[Share]] = [[] for _ in range(count)]
    level = 0.0
    for kind in (kind for kind in KINDS if held.get(kind)):
        top = level + held[kind] / capacity_bytes
        for bank in range(int(level), min(count, ceil(top))):
            low, high = max(level - bank, 0.0), min(top - bank, 1.0)
            banks[bank] += [Share(kind, low, high)] if high > low else []
        level = top
    return banks


@styled
def piggy_bank(
    held: Bytes, capacity_bytes: float = 80e9, formula: Bytes | None = None, title: str = "", name: str = "held",
    rank: int = 0, ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """Bytes of a rank, by kind, as what is in a GPU of `capacity_bytes`, beside what the formula says.

    More than one bank: the bytes do not fit, and it would take as many. Kinds are shades of the rank's colour,
    parameters the darkest; buffers of communication are hatched. `name` stands above the bytes.

    Raises: ValueError for an unknown kind, negative bytes or a capacity that is not positive.
    """
    banks = shares(held, capacity_bytes)[:MOST]
    shares(formula or {}, capacity_bytes)
    ax = sheet(ax, "piggy bank", WIDTH, HEIGHT)
    unit, columns = _fit(len(banks), PANEL - 0.3, HEIGHT - 2 * FOOT)
    left = (PANEL - columns * 1.5 * unit) / 2
    top = HEIGHT / 2 + ceil(len(banks) / columns) * unit / 2
    for number, layers in enumerate(banks):
        row, column = divmod(number, columns)
        _pig(ax, left + column * 1.5 * unit, top - (row + 1) * unit, unit, layers, rank)
    lists = {name: held} if formula is None else {name: held, "formula": formula}
    _panel(ax, lists, capacity_bytes, title, rank)
    return ax


def _fit(count: int, width: float, height: float) -> tuple[float, int]:
    """The height of a bank, two thirds of its width, and how many stand in a row to be largest."""
    sizes = [
        (min(width / columns / 1.5, height / ceil(count / columns)), columns)
        for columns in range(1, count + 1)
    ]
    return max(sizes, key=lambda size: (round(size[0], 6), -size[1]))


def _pig(ax: Axes, x: float, y: float, u: float, layers: list[Share], rank: int) -> None:
    """One bank in a box of 1.5 u by u."""
    line = {"edgecolor": TEXT, "linewidth": min(1.4, max(0.5, 0.6 * u))}
    skin = {"facecolor": EMPTY, **line}
    for foot in (0.34, 0.86):
        ax.add_patch(Rectangle((x + foot * u, y + 0.05 * u), 0.13 * u, 0.2 * u, zorder=1, **skin))
    ear, tail = [(0.84, 0.8), (1.02, 0.97), (1.06, 0.74)], [(0.17, 0.52), (0.04, 0.52), (0.03, 0.64)]
    ax.add_patch(Polygon([(x + a * u, y + b * u) for a, b in ear], zorder=1, **skin))
    ax.add_patch(Polygon([(x + a * u, y + b * u) for a, b in tail], closed=False, fill=False, **line))
    corner, size, body = (x + 0.16 * u, y + 0.18 * u), (u, 0.66 * u), f"round,pad=0,rounding_size={0.24 * u}"
    clip = ax.add_patch(FancyBboxPatch(corner, *size, zorder=2, boxstyle=body, **skin))
    for kind, bottom, top in layers:
        at, height = (corner[0], corner[1] + bottom * size[1]), (top - bottom) * size[1]
        layer = Rectangle(at, size[0], height, gid=kind, zorder=3, linewidth=0.4, **_look(kind, rank))
        ax.add_patch(layer).set_clip_path(clip)
    skin["facecolor"] = "none"
    ax.add_patch(FancyBboxPatch(corner, *size, zorder=4, gid="bank", boxstyle=body, **skin))
    _face(ax, x, y, u, line)


def _face(ax: Axes, x: float, y: float, u: float, line: dict) -> None:
    """Snout, eye and slot."""
    dark = {"facecolor": TEXT, "zorder": 6}
    ax.add_patch(Ellipse((x + 1.2 * u, y + 0.48 * u), 0.2 * u, 0.27 * u, zorder=5, facecolor=EMPTY, **line))
    for nostril in (0.43, 0.53):
        ax.add_patch(Ellipse((x + 1.22 * u, y + nostril * u), 0.035 * u, 0.05 * u, **dark))
    ax.add_patch(Ellipse((x + 1.0 * u, y + 0.62 * u), 0.1 * u, 0.1 * u, zorder=5, facecolor=PAPER, **line))
    ax.add_patch(Ellipse((x + 1.015 * u, y + 0.62 * u), 0.04 * u, 0.05 * u, **dark))
    ax.add_patch(Rectangle((x + 0.5 * u, y + 0.825 * u), 0.26 * u, 0.03 * u, **dark))


def _look(kind: str, rank: int) -> dict[str, Any]:
    fill = tint(colour(rank), KINDS[kind])
    return {"facecolor": fill, "edgecolor": TEXT, "hatch": hatch(0) if kind == "buffer" else None}


def _panel(ax: Axes, columns: dict[str, Bytes], capacity_bytes: float, title: str, rank: int) -> None:
    """Title, a line for each kind, the totals, and whether it fits."""
    kinds = [kind for kind in reversed(KINDS) if any(held.get(kind) for held in columns.values())]
    total, places = (
        sum(next(iter(columns.values())).values()),
        [PANEL + 2.15 + 1.05 * i for i in range(len(columns))],
    )
    y = HEIGHT / 2 + 0.15 * len(kinds) + 0.11
    ax.text(PANEL, y + 0.42, title, va="bottom", size=SMALL + 1)
    for place, (head, held) in zip(places, columns.items(), strict=True):
        ax.text(place, y, head, ha="right", weight="bold", size=SMALL + 1)
        for row, kind in enumerate(kinds, 1):
            ax.text(place, y - 0.3 * row, bytes_text(held.get(kind, 0)), ha="right")
        ax.text(place, y - 0.3 * (len(kinds) + 1), bytes_text(sum(held.values())), ha="right", weight="bold")
    for row, kind in enumerate(kinds, 1):
        swatch = Rectangle((PANEL, y - 0.3 * row - 0.03), 0.22, 0.16, linewidth=0.6, **_look(kind, rank))
        ax.add_patch(swatch)
        ax.text(PANEL + 0.35, y - 0.3 * row, kind)
    y -= 0.3 * (len(kinds) + 1)
    ax.text(PANEL + 0.35, y, "total", weight="bold")
    ax.text(PANEL, y - 0.3, verdict(total, capacity_bytes), weight="bold", va="top", gid="verdict")


def verdict(total: float, capacity_bytes: float) -> str:
    """Whether it fits, in words."""
    room = bytes_text(capacity_bytes)
    if total <= capacity_bytes:
        return f"Fits in {room}: {bytes_text(capacity_bytes - total)} free."
    count = ceil(total / capacity_bytes - 1e-9)
    more = f"\n({MOST} are drawn)" if count > MOST else ""
    return f"Does not fit in {room}:\nit takes {plural(count, 'bank')} like it.{more}"
