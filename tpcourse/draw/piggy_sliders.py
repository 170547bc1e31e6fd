"""The piggy bank with sliders: will a model of this size fit, at the rates that a real step showed?"""

from typing import Any

from matplotlib.axes import Axes

from tpcourse.draw.piggy import piggy_bank
from tpcourse.memory import RECOMPUTE, Rates, gpt_width

HINT = "Run this cell in JupyterLab to choose the model, the tokens and what is computed again."
TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
BILLIONS, LAYERS, BATCH = (1, 100), (8, 128), (1, 16)


def frame(
    rates: Rates, billions: int, layers: int, tokens: int, batch: int, recompute: str, capacity_bytes: float = 80e9,
    ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """A GPT of so many billion parameters at these rates, beside the formulas. Raises: ValueError for sizes
    below 1.
    """
    sizes = (1e9 * billions, layers, tokens, batch, recompute)
    width = gpt_width(1e9 * billions, layers)
    title = (
        f"{billions} B parameters: {layers} layers, width {width:,}\n"
        f"{batch} x {tokens:,} tokens, recompute {recompute}"
    )
    return piggy_bank(
        rates.model(*sizes), capacity_bytes, Rates.formula().model(*sizes), title, "at these rates", ax=ax
    )


class Sliders:
    """Five controls above one picture; the picture is an ordinary png that the controls replace."""

    def __init__(
        self,
        rates: Rates,
        billions: int,
        layers: int,
        tokens: int,
        batch: int,
        recompute: str,
        capacity_bytes: float,
    ) -> None:
        import ipywidgets as widgets

        wide: dict[str, Any] = {"style": {"description_width": "initial"}}
        self.rates, self.capacity_bytes = rates, capacity_bytes
        self.billions = widgets.IntSlider(billions, *BILLIONS, description="parameters (B)", **wide)
        self.layers = widgets.IntSlider(layers, *LAYERS, description="layers", **wide)
        self.tokens = widgets.SelectionSlider(options=TOKENS, value=tokens, description="tokens", **wide)
        self.batch = widgets.IntSlider(batch, *BATCH, description="batch", **wide)
        self.recompute = widgets.Dropdown(options=RECOMPUTE, value=recompute, description="recompute", **wide)
        self.all = (self.billions, self.layers, self.tokens, self.batch, self.recompute)
        self.controls = widgets.HBox(list(self.all), layout={"flex_flow": "row wrap"})
        self.handle: Any = None
        for control in self.all:
            control.observe(self._redraw, "value")

    def picture(self) -> Axes:
        """The picture for what is chosen now."""
        billions, layers, tokens, batch, recompute = (control.value for control in self.all)
        return frame(self.rates, billions, layers, tokens, batch, recompute, self.capacity_bytes)

    def show(self) -> None:
        """Display controls and picture. A front end without widgets shows the sentence and the first
        picture.
        """
        from IPython.display import display

        view = self.controls._repr_mimebundle_()
        view["text/plain"] = HINT
        display(view, raw=True)
        self.handle = display(self.picture(), display_id=True)

    def _redraw(self, _: Any) -> None:
        if self.handle is not None:
            self.handle.update(self.picture())


def piggy_bank_sliders(
    rates: Rates | None = None, billions: int = 10, layers: int = 48, tokens: int = 2048, batch: int = 1,
    recompute: str = "none", capacity_bytes: float = 80e9,
) -> None:  # fmt: skip
    """Show what a GPT would hold on one GPU, with sliders for its size, the tokens and recompute.

    `rates` come from a real step, `memory.Rates.measured(...)`; without them the formulas' are used.

    Raises: ValueError for a size that its slider does not have, an unknown recompute, or a capacity of 0.
    """
    limits = {"billions": (billions, BILLIONS), "layers": (layers, LAYERS), "batch": (batch, BATCH)}
    for name, (value, (least, most)) in limits.items():
        if not least <= value <= most:
            raise ValueError(f"{name} = {value}: choose {least} to {most}")
    if tokens not in TOKENS:
        raise ValueError(f"tokens = {tokens}: choose one of {', '.join(map(str, TOKENS))}")
    rates = Rates.formula() if rates is None else rates
    frame(rates, billions, layers, tokens, batch, recompute, capacity_bytes)
    Sliders(rates, billions, layers, tokens, batch, recompute, capacity_bytes).show()
