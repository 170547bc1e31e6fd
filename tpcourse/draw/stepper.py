"""A collective step by step: a picture that three controls change."""

from collections import Counter
from typing import Any

from matplotlib.axes import Axes

from tpcourse.draw.algorithms import ALGORITHMS, Rounds, play
from tpcourse.draw.cells import exchange
from tpcourse.draw.palette import plural, sheet, styled

HINT = "Run this cell in JupyterLab to choose the algorithm, the number of ranks and the step."


def frame(algorithm: str, p: int, step: int, ax: Axes | None = None) -> Axes:
    """What p ranks hold after `step` rounds of an algorithm, with what travels next.

    Raises: ValueError for an unknown algorithm, a p it cannot do, or a step it does not have.
    """
    states, rounds = play(algorithm, p)
    if not 0 <= step <= len(rounds):
        raise ValueError(f"step = {step}, but {algorithm} on {p} ranks has {len(rounds)}: choose 0 to {len(rounds)}")
    moves = rounds[step] if step < len(rounds) else []
    return exchange(states[step], moves, f"{algorithm}, {p} ranks\n{_caption(rounds, step)}", ax=ax)


def _caption(rounds: Rounds, step: int) -> str:
    if step == len(rounds):
        return f"done after {plural(step, 'step')}"
    elements = Counter(move.src for move in rounds[step])
    most = plural(max(elements.values()), "element")
    who = "each rank sends" if len(elements) > 1 and len(set(elements.values())) == 1 else "a rank sends at most"
    who = f"rank {next(iter(elements))} sends" if len(elements) == 1 else who
    return f"after {step} of {plural(len(rounds), 'step')}; next, {who} {most}"


@styled
def _sentence(text: str) -> Axes:
    ax = sheet(None, "exchange", 9.2, 0.6)
    ax.text(0.1, 0.3, text, va="center")
    return ax


class Stepper:
    """Three controls above one picture; the picture is an ordinary png that the controls replace."""

    def __init__(self, algorithm: str, p: int) -> None:
        import ipywidgets as widgets

        wide, names = {"description_width": "initial"}, list(ALGORITHMS)
        self.algorithm = widgets.Dropdown(options=names, value=algorithm, description="algorithm", style=wide)
        self.p = widgets.IntSlider(p, 2, 8, description="ranks p", style=wide)
        self.step = widgets.IntSlider(0, 0, self.num_steps(), description="step", style=wide)
        self.controls = widgets.HBox([self.step, self.algorithm, self.p], layout={"flex_flow": "row wrap"})
        self.handle: Any = None
        for control in (self.algorithm, self.p):
            control.observe(self._restart, "value")
        self.step.observe(self._redraw, "value")

    def num_steps(self) -> int:
        """Steps of the chosen algorithm; 0 where it cannot do this p."""
        try:
            return len(play(self.algorithm.value, self.p.value)[1])
        except ValueError:
            return 0

    def picture(self) -> Axes:
        """The picture for what is chosen now; a sentence where the algorithm cannot do this p."""
        try:
            return frame(self.algorithm.value, self.p.value, self.step.value)
        except ValueError as error:
            return _sentence(str(error))

    def show(self) -> None:
        """Display controls and picture. A front end without widgets shows the sentence and the first picture."""
        from IPython.display import display

        view = self.controls._repr_mimebundle_()
        view["text/plain"] = HINT
        display(view, raw=True)
        self.handle = display(self.picture(), display_id=True)

    def _restart(self, _: Any) -> None:
        self.step.unobserve(self._redraw, "value")
        self.step.value, self.step.max = 0, self.num_steps()
        self.step.observe(self._redraw, "value")
        self._redraw(None)

    def _redraw(self, _: Any) -> None:
        if self.handle is not None:
            self.handle.update(self.picture())


def collective_stepper(algorithm: str = "all_gather, ring", p: int = 4) -> None:
    """Show a collective step by step, with controls for the step, the algorithm and the number of ranks.

    Raises: ValueError for an unknown algorithm, or a p outside 2 to 8 or one that the algorithm cannot do.
    """
    if not 2 <= p <= 8:
        raise ValueError(f"p = {p} ranks: choose 2 to 8")
    play(algorithm, p)
    Stepper(algorithm, p).show()
