"""Loss curves of a training, one or several, beside the one-device curve that they should equal."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tpcourse.draw.palette import FAINT, SMALL, TEXT, plot_axes, styled, tint

Losses = Sequence[float]
MOST = 4
WIDTHS = (6.8, 4.9, 3.1, 1.5)  # points: curves that lie on each other all stay visible, the first one widest
STRENGTHS = (0.18, 0.34, 0.5, 0.66)


@styled
def loss_curve(
    losses: "Losses | Mapping[str, Losses]",
    one_device: "Losses | None" = None,
    V: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Loss against step: one curve, or a curve for each of 1 to 4 names, each name with its last loss.

    Curves that lie on each other are drawn as bands within bands. The one-device curve is dashed, on top. `V` adds
    ln V, the loss of a guess among V tokens.

    Raises: ValueError for no curve or more than 4, for a curve without a step, or a V below 2.
    """
    named = dict(losses) if isinstance(losses, Mapping) else {"loss": losses}
    _require(named, one_device, V)
    ax = plot_axes(ax, "loss curve", 7.6, 3.3)
    if len(named) == 1 and one_device is None:
        _curve(ax, next(iter(named)), next(iter(named.values())), TEXT, 1.3)
    else:
        for number, (name, values) in enumerate(named.items()):
            place = number + (MOST - len(named)) // 2
            _curve(ax, name, values, tint(TEXT, STRENGTHS[place]), WIDTHS[place])
    if one_device is not None:
        _curve(ax, "one device", one_device, TEXT, 1.1, (0, (4, 3)))
    if V is not None:
        _guess(ax, V)
    ax.set(xlabel="step", ylabel="loss (nats a token)", xlim=(0, None))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), title="loss of the last step", alignment="left")
    return ax


def _guess(ax: Axes, V: int) -> None:
    at, place = math.log(V), ax.get_yaxis_transform()
    ax.axhline(at, color=FAINT, linestyle=":", linewidth=1.2, gid="guess")
    text, style = f"a guess: ln {V} = {at:.2f}", {"ha": "right", "va": "bottom", "size": SMALL}
    ax.annotate(text, (1.0, at), (0, 2), xycoords=place, textcoords="offset points", **style)


def _curve(ax: Axes, name: str, values: Losses, ink: str, width: float, dashes: object = "-") -> None:
    steps = range(1, len(values) + 1)
    style = {
        "color": ink,
        "linewidth": width,
        "linestyle": dashes,
        "solid_joinstyle": "round",
        "marker": "o" if len(values) == 1 else "",
    }
    ax.plot(steps, values, gid="loss", label=f"{name}: {values[-1]:.4f}", **style)


def _require(named: Mapping[str, Losses], one_device: Losses | None, V: int | None) -> None:
    if not 1 <= len(named) <= MOST:
        raise ValueError(f"{len(named)} curves: give the losses of one, or a mapping of 1 to {MOST} names to losses")
    empty = [
        name for name, values in {**named, "one device": one_device}.items() if values is not None and not len(values)
    ]
    if empty:
        raise ValueError(f"0 losses for {', '.join(empty)}: train at least one step first")
    if V is not None and V < 2:
        raise ValueError(f"V = {V}: a guess needs 2 tokens or more to choose from")
