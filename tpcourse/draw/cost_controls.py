"""Tensor parallelism's price as a picture that four controls change."""

from typing import Any

from matplotlib.axes import Axes

from tpcourse.costs import LINKS, PEAK_FLOPS, overlap_ratio, product_flops, seconds
from tpcourse.draw.cost_links import product_bars

HINT = "Run this cell in JupyterLab to choose the number of ranks, the link, the columns and the tokens."
RANKS = (2, 4, 8, 16, 32, 64)
HIDDEN = (1024, 2048, 4096, 8192, 14336, 28672, 57344)
TOKENS = (64, 512, 4096, 16384)
WIRES = tuple(name for name in LINKS if name != "loopback")
WIDTH = 8192  # D: it cancels, but for alpha
GPU = "H100"


def frame(p: int, link: str, hidden: int, tokens: int = 4096, ax: Axes | None = None) -> Axes:
    """The product [tokens, D] @ [D, hidden] on one H100 and on p of them over a link, by figures on paper.

    Raises: ValueError as `costs.seconds`.
    """
    product_s = product_flops(tokens, WIDTH, hidden) / PEAK_FLOPS[GPU]
    gather_s = seconds("all_gather", 2 * tokens * WIDTH, p, link)
    r = overlap_ratio(p, hidden // p, PEAK_FLOPS[GPU], LINKS[link].bytes_per_s)
    title = f"{p} x {GPU}, {link}, N = {hidden:,}: without alpha r = {r:.3g}\n{tokens:,} tokens: "
    return product_bars(product_s, gather_s, p, title, ax=ax)


class CostSliders:
    """Four controls above one picture; the picture is an ordinary png that the controls replace."""

    def __init__(self, p: int, link: str, hidden: int, tokens: int) -> None:
        import ipywidgets as widgets

        def choice(options: tuple[int, ...], value: int, text: str) -> Any:
            return widgets.SelectionSlider(options=options, value=value, description=text, style=wide)

        wide = {"description_width": "initial"}
        self.p, self.hidden = choice(RANKS, p, "ranks p"), choice(HIDDEN, hidden, "columns N")
        self.tokens = choice(TOKENS, tokens, "tokens")
        self.link = widgets.Dropdown(options=WIRES, value=link, description="link", style=wide)
        everything = [self.p, self.link, self.hidden, self.tokens]
        self.controls = widgets.HBox(everything, layout={"flex_flow": "row wrap"})
        self.handle: Any = None
        for control in everything:
            control.observe(self._redraw, "value")

    def picture(self) -> Axes:
        """The picture for what is chosen now."""
        return frame(self.p.value, self.link.value, self.hidden.value, self.tokens.value)

    def show(self) -> None:
        """Display controls and picture. A front end without widgets shows the sentence and the first picture."""
        from IPython.display import display

        view = self.controls._repr_mimebundle_()
        view["text/plain"] = HINT
        display(view, raw=True)
        self.handle = display(self.picture(), display_id=True)

    def _redraw(self, _: Any) -> None:
        if self.handle is not None:
            self.handle.update(self.picture())


def cost_sliders(p: int = 8, link: str = "NVLink 4", hidden: int = 28672, tokens: int = 4096) -> None:
    """Show what a product split over p ranks costs, with controls for ranks, link, columns and tokens.

    Raises: ValueError for a value that the controls do not offer.
    """
    offered = {"p": (p, RANKS), "link": (link, WIRES), "hidden": (hidden, HIDDEN), "tokens": (tokens, TOKENS)}
    for name, (value, options) in offered.items():
        if value not in options:
            raise ValueError(f"{name} = {value!r} is not on offer: choose one of {', '.join(map(str, options))}")
    CostSliders(p, link, hidden, tokens).show()
