"""The notebook's side of training: the ranks take a few steps at a time, and a bar shows how far they are.

Nothing here needs torch in the notebook's kernel; the functions that run on the ranks find it there.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tpcourse.ranks import RanksError

HINT = "Run this cell in JupyterLab to see how far the training is."
ROUND_S = 0.5  # the bar moves about twice a second


class TrainingStopped(RanksError):
    """The learner stopped a training between two steps."""


def run(ranks: Any, name: str = "trainer", *, steps: int, targets: Any = None) -> list[float]:
    """Train until the `Trainer` that the ranks call `name` has done `steps` steps; returns their losses.

    The interrupt button stops it after the steps that are under way, half a second's worth; pressed again, at once.
    In either case the ranks work, and the same cell again goes on where it was: the losses are those of a run that
    was never interrupted. A trainer that has done its steps does nothing. While it runs, JupyterLab shows a bar with
    step, loss and tokens a second; it is gone when the cell ends, and nothing is printed.
    Raises: ValueError for steps below 1, or where `name` is no trainer; TrainingStopped at the first interrupt,
    RanksInterrupted at the second; others as `ranks.run`.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps = {steps!r}: how many steps the trainer has done in the end, 1 or more")
    done, tokens_per_step = _look(ranks, name, targets)
    bar = Bar(steps, tokens_per_step) if done < steps and _is_live() else None
    try:
        with noting_interrupt() as noted:
            _rounds(ranks, name, done, steps, targets, bar, noted)
    finally:
        if bar is not None:
            bar.close()
    return ranks.run(_losses, name, steps, targets=targets)[0]


def _rounds(
    ranks: Any, name: str, done: int, steps: int, targets: Any, bar: Bar | None, noted: list[int]
) -> None:  # fmt: skip
    """A few steps after the other, until all are done or an interrupt is noted."""
    count = 1
    while done < steps and not noted:
        begin, before = time.monotonic(), done
        done, loss = min(ranks.run(_advance, name, min(count, steps - done), targets=targets))
        took_s = time.monotonic() - begin
        if bar is not None:
            bar.move(done, loss, (done - before) / took_s)
        count = next_count(count, took_s)
    if noted:
        again = "The same cell again goes on from there."
        raise TrainingStopped(f"You stopped the training after step {done:,} of {steps:,}. {again}")


@contextmanager
def noting_interrupt() -> Iterator[list[int]]:
    """Within the block the first interrupt is only noted in the list; the second one interrupts as usual."""
    noted: list[int] = []
    usual = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        if noted and callable(usual):
            usual(number, frame)
        noted.append(number)

    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield noted
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, usual)


def next_count(count: int, took_s: float) -> int:
    """How many steps to take in the next round, if `count` took so long; no more than twice as many."""
    return max(1, min(2 * count, round(count * ROUND_S / max(took_s, 1e-6))))


def _look(ranks: Any, name: str, targets: Any) -> tuple[int, int]:
    """The step that the ranks go on from, and the tokens of a step."""
    found = dict(zip(ranks.targets(targets), ranks.run(_state, name, targets=targets), strict=True))
    if missing := [rank for rank, state in found.items() if state is None]:
        raise ValueError(
            f"{name!r} is no trainer on {_ranks_text(missing)}: run the cell that makes it, on every rank, as "
            f"{name} = Trainer(model, optimizer, tokens, ...)"
        )
    return min(found.values())


def _ranks_text(ranks: list[int]) -> str:
    from tpcourse.watch.words import ranks_text

    return ranks_text(ranks)


def _is_live() -> bool:
    """Whether somebody watches: not in a build, not under nbval, not outside a notebook."""
    from IPython import get_ipython

    return os.environ.get("TPCOURSE_LIVE", "1") != "0" and get_ipython() is not None


class Bar:
    """A bar with step, loss and tokens a second. It leaves nothing in the notebook, where its times would differ."""

    def __init__(self, steps: int, tokens_per_step: int) -> None:
        import ipywidgets as widgets
        from IPython.display import display

        self.tokens_per_step = tokens_per_step
        self.bar, self.text = widgets.IntProgress(0, 0, steps), widgets.Label("starting")
        self.box = widgets.HBox([self.bar, self.text])
        view = self.box._repr_mimebundle_()
        view["text/plain"] = HINT
        self.handle = display(view, raw=True, display_id=True)

    def move(self, done: int, loss: float, steps_per_s: float) -> None:
        """Show where the training is."""
        speed = f"{self.tokens_per_step * steps_per_s:,.0f} tokens/s"
        self.bar.value, self.text.value = done, f"step {done:,} of {self.bar.max:,}, loss {loss:.3f}, {speed}"

    def close(self) -> None:
        """Leave the page: an output without data is no output."""
        self.handle.update({}, raw=True)
        for widget in (self.box, self.bar, self.text):
            widget.close()


def _trainer(name: str) -> Any:
    """On a rank: the variable of that name, if it is a trainer."""
    from IPython import get_ipython

    from tpcourse.train.loop import Trainer

    value = get_ipython().user_ns.get(name)
    return value if isinstance(value, Trainer) else None


def _state(name: str) -> tuple[int, int] | None:
    trainer = _trainer(name)
    return None if trainer is None else (trainer.step, trainer.tokens_per_step)


def _advance(name: str, num_steps: int) -> tuple[int, float]:
    trainer = _trainer(name)
    losses = trainer.advance(num_steps)
    return trainer.step, losses[-1]


def _losses(name: str, steps: int) -> list[float]:
    return _trainer(name).losses[:steps]
