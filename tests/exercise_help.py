"""What the tests of a lesson's exercises share: its solutions, variations of them, and what a check says of one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tpcourse import check
from tpcourse.authoring import nbgrader
from tpcourse.authoring.source import read_source

SOURCES = Path(__file__).parents[1] / "solutions" / "src"


class Answers:
    """The solutions of one lesson, as "08_overlap"."""

    def __init__(self, lesson: str) -> None:
        self.cells = read_source(SOURCES / f"{lesson}.py").cells

    def solution(self, name: str) -> str:
        cells = {cell.metadata["nbgrader"]["grade_id"]: cell for cell in self.cells if nbgrader.is_answer(cell)}
        return cells[name].source.removeprefix("%%px\n")

    def changed(self, name: str, *changes: tuple[str, str]) -> str:
        """The solution, with some lines replaced."""
        text = self.solution(name)
        for before, after in changes:
            assert before in text, before
            text = text.replace(before, after)
        return text

    def set_up(self, ranks: Any) -> None:
        """Run what the notebook's other cells run on the ranks."""
        cells = [cell for cell in self.cells if cell.source.startswith("%%px\n") and not nbgrader.is_answer(cell)]
        ranks.run_cell("\n".join(cell.source.removeprefix("%%px\n") for cell in cells))


def failure(ranks: Any, name: str) -> str:
    """What the check says of an answer that it rejects, in one line."""
    with pytest.raises(check.CheckFailed) as caught:
        check.exercise(ranks, name)
    return re.sub(r"\s+", " ", str(caught.value))
