"""Four panels of a training in several modes, out of the recorded run of `tpcourse bench profile`."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tpcourse.draw.palette import SMALL, TEXT, plot_axes, styled, tint
from tpcourse.draw.recordings import none_on_gpus, recorded_on_gpus

Modes = Mapping[str, Mapping[str, Any]]
STRENGTHS, WIDTHS = (0.2, 0.4, 0.65, 1.0), (6.0, 4.2, 2.6, 1.1)
"""Curves that lie on each other all stay visible: the first one palest and widest."""
PLACES = ((0.0, 0.62), (0.56, 0.62), (0.0, 0.0), (0.56, 0.0))
NONE = none_on_gpus("profile")


def recorded_profile(
    size: int = -1, recordings: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[dict[str, Any], str]:
    """Modes and title for `four_panels`: the recorded run at one of its sizes, the last one unless told.

    No modes, and a title that says so, if none was recorded on GPUs; `recordings` are those of `recorded("profile")`.
    """
    if (run := recorded_on_gpus("profile", recordings)) is None:
        return {}, NONE
    machine, figures = run
    one = figures["sizes"][size]
    config = one["config"]
    words = f"h {config['D']}, F {config['F']}, {config['L']} layers, s {config['T']}, b {one['sequences']}"
    return one["modes"], f"{words}; {machine}"


@styled
def four_panels(modes: Modes, title: str = "", ax: Axes | None = None) -> Axes:
    """Loss and gradient norm by step, milliseconds of a step, and peak memory of a rank, for 1 to 4 modes.

    A mode has "losses", "norms", "ms" and "peak_GB", as `tpcourse bench profile` records them; without a peak, as on
    the CPU, its panel says so. No modes are a title without a plot. Raises: ValueError for more than 4 modes.
    """
    if len(modes) > len(WIDTHS):
        raise ValueError(f"{len(modes)} modes: give 1 to {len(WIDTHS)}")
    ax = plot_axes(ax, "four panels", 8.6, 5.4 if modes else 0.5)
    ax.set_title(title, pad=14 if modes else None)
    ax.set_axis_off()
    if not modes:
        return ax
    loss, norm, time, peak = (ax.inset_axes((x, y, 0.43, 0.36)) for x, y in PLACES)
    _curves(loss, {name: mode["losses"] for name, mode in modes.items()}, "loss (nats a token)")
    _curves(norm, {name: mode["norms"] for name, mode in modes.items()}, "gradient norm")
    _bars(time, {name: mode["ms"] for name, mode in modes.items()}, "ms a step")
    _bars(peak, {name: mode["peak_GB"] for name, mode in modes.items()}, "peak of a rank, GB")
    return ax


def _curves(ax: Axes, curves: Mapping[str, Sequence[float]], label: str) -> None:
    for (name, values), strength, width in zip(curves.items(), STRENGTHS, WIDTHS, strict=False):
        ax.plot(range(1, len(values) + 1), values, color=tint(TEXT, strength), linewidth=width, label=name, gid="curve")
    ax.set(xlabel="step", title=label)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5))


def _bars(ax: Axes, values: Mapping[str, float | None], label: str) -> None:
    """A bar for each mode, with its number."""
    ax.set_title(label)
    ax.set_yticks(range(len(values)), list(values))
    ax.set_ylim(len(values) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    known = [value for value in values.values() if value is not None]
    for number, (value, strength) in enumerate(zip(values.values(), STRENGTHS, strict=False)):
        text = "not known on a CPU" if value is None else f" {value:.3g}"
        ax.barh(number, value or 0.0, 0.7, facecolor=tint(TEXT, strength), edgecolor="none", gid="bar")
        ax.text(value or 0.0, number, text, va="center", size=SMALL)
    ax.set_xlim(0, 1.2 * max(known, default=1.0))
