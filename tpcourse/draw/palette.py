"""The palette, the style and the canvas: the only place that says how pictures look."""

import io
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image

P = ParamSpec("P")
R = TypeVar("R")

# Okabe and Ito's colours (safe for the colour-blind), ordered so that neighbours differ in lightness too.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#555555")
HATCHES = ("////", "\\\\\\\\", "xxxx", "....")
PAPER, TEXT, FAINT, EMPTY = "#FFFFFF", "#1A1A1A", "#8A8A8A", "#F4F4F4"
SMALL, NORMAL, LARGE = 8.0, 9.5, 10.5
MAX_WIDTH = 9.2  # inches: what JupyterLab shows without scaling on a laptop

STYLE: dict[str, Any] = {
    "figure.facecolor": PAPER, "savefig.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.bbox": None,
    "figure.dpi": 100, "savefig.dpi": 100, "font.family": ["DejaVu Sans"], "font.size": NORMAL,
    "text.color": TEXT, "axes.labelcolor": TEXT, "xtick.color": TEXT, "ytick.color": TEXT,
    "axes.edgecolor": FAINT, "axes.linewidth": 0.8, "axes.titlesize": LARGE, "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": False, "xtick.labelsize": NORMAL,
    "ytick.labelsize": NORMAL, "legend.frameon": False, "legend.fontsize": NORMAL, "hatch.linewidth": 0.8,
    "text.usetex": False, "svg.hashsalt": "tpcourse",
}  # fmt: skip


def colour(rank: int) -> str:
    """Colour of a rank; from rank 8 on the colours come again, paler."""
    return tint(COLOURS[rank % 8], max(0.35, 0.6 ** (rank // 8)))


def hatch(rank: int) -> str:
    """Hatch of a rank's communication; computation has none."""
    return HATCHES[rank % 4]


def tint(fill: str, strength: float) -> str:
    """A colour mixed with white: strength 1 is the colour, 0 is white."""
    return to_hex([1 - strength * (1 - part) for part in to_rgb(fill)])


def ink(fill: str) -> str:
    """Black or white, whichever reads better on a fill (relative luminance, WCAG 2)."""
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(fill)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return TEXT if luminance > 0.2 else PAPER


def bytes_text(num_bytes: float) -> str:
    """Bytes in decimal units: 48 B, 1.5 kB, 16 GB."""
    units = ("B", "kB", "MB", "GB", "TB")
    power = 0
    while abs(num_bytes) >= 999.5 and power < len(units) - 1:
        num_bytes, power = num_bytes / 1000, power + 1
    return f"{num_bytes:.3g} {units[power]}"


def plural(number: int, noun: str) -> str:
    """A number and its noun: 1 step, 3 steps."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """A drawing function that runs in our style and leaves the caller's style as it was."""

    @wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> R:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return in_style


class Picture(Axes):
    """Axes that show themselves once, as a png, when they are a cell's last line. Trap: pyplot does not know them."""

    name = "tpcourse"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        width = round(self.get_figure().get_figwidth() * 100)
        data = {"image/png": png(self), "text/plain": f"Picture: {self.get_label()}"}
        return data, {"image/png": {"width": width}}


@styled
def png(ax: Axes) -> bytes:
    """The picture as png, twice as fine as it is shown; the same picture gives the same bytes."""
    buffer = io.BytesIO()
    ax.get_figure(root=True).savefig(buffer, format="png", dpi=200, metadata={"Software": None})
    smaller = io.BytesIO()  # 256 colours: a quarter of the bytes in the notebook
    Image.open(buffer).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(smaller, "png")
    return smaller.getvalue()


def plot_axes(ax: Axes | None, name: str, width: float, height: float) -> Axes:
    """The given axes, or new ones for a plot with scales."""
    if ax is not None:
        return ax
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure.add_subplot(axes_class=Picture, label=name)


def sheet(ax: Axes | None, name: str, width: float, height: float, bottom: float = 0.0) -> Axes:
    """The given axes, or new ones, as a sheet of width x height inches without scales; y upwards from `bottom`."""
    if ax is None:
        figure = Figure(figsize=(width, height))
        ax = figure.add_axes(Picture(figure, (0, 0, 1, 1), label=name))
    ax.set(xlim=(0, width), ylim=(bottom, bottom + height), aspect="equal")
    ax.set_axis_off()
    return ax
