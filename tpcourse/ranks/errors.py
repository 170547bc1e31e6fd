"""What goes wrong on ranks, as exceptions that show a report instead of a traceback."""

from __future__ import annotations

from typing import Any


class RanksError(RuntimeError):
    """Base of the errors that ranks raise in a notebook."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the report alone, no frames of ours."""
        return f"{type(self).__name__}: {self}".splitlines()


class RankError(RanksError):
    """The learner's code raised on one or more ranks."""


class RanksStuck(RanksError):
    """Ranks waited for each other and could not go on; `report` says who waited for what."""

    def __init__(self, text: str, report: Any = None) -> None:
        super().__init__(text)
        self.report = report


class RankDied(RanksStuck):
    """The process of a rank ended while a cell ran."""


class RanksInterrupted(RanksStuck):
    """The learner stopped the cell."""


class RanksOutOfTime(RanksStuck):
    """A run went on for longer than it was given; perhaps no rank waited, and all computed."""


class RanksDisagree(RanksStuck):
    """A cell ended, but the ranks' calls did not match: results may be wrong."""
