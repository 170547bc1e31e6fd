"""What each way to overlap hides, and where it loses, out of the recorded run of `tpcourse bench overlap`."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tpcourse.draw.palette import FAINT, PAPER, SMALL, TEXT, plot_axes, styled, tint
from tpcourse.draw.recordings import none_on_gpus, recorded_on_gpus

Row = Mapping[str, Any]
PLAIN, PRODUCTS = "NCCL + cuBLAS", ("product", "product, [K, N]")
LOOKS = {
    "ring": ("o", TEXT, PAPER), "peer": ("o", TEXT, TEXT), "auto": ("D", TEXT, FAINT), "popular": ("X", TEXT, TEXT),
    "torch's fused": ("^", FAINT, FAINT), "parallelize_module": ("^", FAINT, PAPER),
    "compiled async TP": ("^", FAINT, FAINT),
}  # fmt: skip
"""Variant of `tpcourse bench overlap` -> mark, edge, fill. The others are what these are compared with."""
NONE = none_on_gpus("overlap")
LOWEST = -1.0  # what hides less is drawn at the edge, with its number


def recorded_overlap(kind: str, recordings: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[list[Row], str]:
    """Rows and title for `hidden_by_shape` and `overlap_times`: one kind, "gather_product" or "product_scatter".

    No rows, and a title that says so, if none was recorded on GPUs; `recordings` are those of `recorded("overlap")`.
    """
    if (run := recorded_on_gpus("overlap", recordings)) is None:
        return [], NONE
    machine, figures = run
    return [row for row in figures["rows"] if row["kind"] == kind], f"{kind}, {machine}"


def recorded_spans(
    kind: str, variant: str, recordings: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[list[Any], float | None]:
    """The recorded timeline of a variant, and its E by the clock: `timeline(spans, hidden=E)` draws both.

    No spans, and None, if none was recorded on GPUs.
    """
    _, figures = recorded_on_gpus("overlap", recordings) or ("", {"timelines": []})
    lines = [one for one in figures["timelines"] if (one["kind"], one["variant"]) == (kind, variant)]
    if not lines:
        return [], None
    same = (kind, lines[0]["shape"], variant)
    rows = (row for row in figures["rows"] if (row["kind"], row["shape"], row["variant"]) == same)
    return lines[0]["spans"], next((row["hidden"] for row in rows), None)


@styled
def hidden_by_shape(rows: Sequence[Row], title: str = "", ax: Axes | None = None) -> Axes:
    """E of each variant by shape: 1 is as fast as the product alone, 0 as slow as one after the other.

    A row has "shape", "variant" and "hidden", as `tpcourse bench overlap` records them. What is below -1 is drawn at
    the edge, with its number. No rows are a title without a plot.
    """
    shown = [row for row in rows if row["variant"] in LOOKS and row["hidden"] is not None]
    ax = _by_shape(ax, "hidden by shape", shown, title)
    for y, row in _places(shown):
        E = row["hidden"]
        _mark(ax, row["variant"], max(E, LOWEST), y)
        if E < LOWEST:
            ax.annotate(f"{E:.1f}", (LOWEST, y), (6, 0), textcoords="offset points", va="center", size=SMALL)
    if shown:
        for at, style in ((0, "--"), (1, "-")):
            ax.axvline(at, color=FAINT, linewidth=1.0, linestyle=style, gid="end")
        ax.set(xlim=(LOWEST - 0.08, 1.12), xlabel="E, the share of exposed communication that is hidden")
    return ax


@styled
def overlap_times(rows: Sequence[Row], title: str = "", ax: Axes | None = None) -> Axes:
    """Time of each variant over that of one after the other, by shape: right of 1, in the grey, overlap loses.

    A row has "shape", "variant" and "ms". The bar is what there is to win: it ends at the product alone.
    Raises: ValueError for a shape without its product or its serial variant.
    """
    shown = [row for row in rows if row["variant"] in LOOKS]
    ax = _by_shape(ax, "overlap times", shown, title)
    ends = {shape: _ends(rows, shape) for shape in _shapes(shown)}
    over = [row["ms"] / ends[tuple(row["shape"])][1] for row in shown]
    for number, (product_ms, serial_ms) in enumerate(ends.values()):
        ideal = min(product_ms / serial_ms, 1.0)
        ax.barh(number, 1 - ideal, 0.8, ideal, facecolor=tint(FAINT, 0.3), edgecolor="none", gid="gain")
    for (y, row), ratio in zip(_places(shown), over, strict=True):
        _mark(ax, row["variant"], ratio, y)
    if shown:
        right = 1.06 * max(1.1, *over)
        ax.axvspan(1, right, facecolor=tint(FAINT, 0.12), edgecolor="none", gid="loses", zorder=0)
        ax.axvline(1, color=TEXT, linewidth=1.0, gid="serial")
        left = min(*over, *(product_ms / serial_ms for product_ms, serial_ms in ends.values())) - 0.04
        ax.set(xlim=(left, right), xlabel="time / time of one after the other")
        ax.xaxis.set_major_locator(MaxNLocator(7))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return ax


def _shapes(rows: Sequence[Row]) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(tuple(row["shape"]) for row in rows))


def _places(rows: Sequence[Row]) -> list[tuple[float, Row]]:
    """Each row's height: its shape's line, with variants a little apart."""
    shapes, names = _shapes(rows), [name for name in LOOKS if any(row["variant"] == name for row in rows)]
    step = 0.7 / max(1, len(names) - 1)
    middle = (len(names) - 1) / 2
    return [(shapes.index(tuple(r["shape"])) + step * (names.index(r["variant"]) - middle), r) for r in rows]


def _ends(rows: Sequence[Row], shape: tuple[int, ...]) -> tuple[float, float]:
    """Milliseconds of the product alone, and of one after the other."""
    ms = {row["variant"]: row["ms"] for row in rows if tuple(row["shape"]) == shape}
    product = [ms[name] for name in (*PRODUCTS, "products") if name in ms]
    serial = [ms[name] for name in (PLAIN, "serial", "one after the other") if name in ms]
    if not product or not serial:
        raise ValueError(f"shape {list(shape)} has only {', '.join(ms)}: give its product and its serial variant too")
    return min(product), min(serial)


def _mark(ax: Axes, variant: str, x: float, y: float) -> None:
    mark, edge, fill = LOOKS[variant]
    ax.plot(x, y, mark, color=edge, markerfacecolor=fill, markersize=6, gid=variant)


def _by_shape(ax: Axes | None, name: str, rows: Sequence[Row], title: str) -> Axes:
    """A line for each shape, and a key of the variants."""
    shapes = _shapes(rows)
    ax = plot_axes(ax, name, 8.2, 1.3 + 0.62 * len(shapes) if shapes else 0.5)
    ax.set_title(title)
    if not shapes:
        ax.set_axis_off()
        return ax
    ax.set_yticks(range(len(shapes)), [" x ".join(f"{n:,}" for n in shape) for shape in shapes])
    ax.set_ylim(len(shapes) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    seen = [variant for variant in LOOKS if any(row["variant"] == variant for row in rows)]
    looks = [(variant, *LOOKS[variant]) for variant in seen]
    keys = [Line2D([], [], marker=m, color=e, markerfacecolor=f, linestyle="", label=v) for v, m, e, f in looks]
    ax.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax
