"""The official side of a lesson: its exercises, their points, and what a passed check shows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tpcourse.authoring import nbgrader
from tpcourse.authoring.exercise import sections


@dataclass(frozen=True)
class Exercise:
    """One exercise: `answer` and `check` are places among the lesson's code cells."""

    name: str
    title: str
    points: float
    check_id: str
    answer: int
    check: int
    in_ranks: bool  # whether the answer's cell begins with %%px


@dataclass(frozen=True)
class Lesson:
    """The code cells of an exercise notebook, with the outputs that its solution shows in check cells."""

    number: str
    stem: str
    cells: list[Any] = field(repr=False)
    exercises: list[Exercise]
    outputs: dict[str, list[Any]] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Changes with any official cell or output."""
        text = json.dumps([self.cells, self.outputs], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def named(self, name: str) -> Exercise | None:
        """The exercise whose answer has this grade id."""
        return next((exercise for exercise in self.exercises if exercise.name == name), None)


def lessons(root: Path) -> dict[str, Lesson]:
    """Every lesson of the course that has exercises, by its two digits.

    Raises: ValueError if there are none.
    """
    found = {path.name[:2]: read(path) for path in sorted((root / "exercises").glob("[0-9][0-9]_*.ipynb"))}
    if not found:
        raise ValueError(f"no exercises in {root / 'exercises'}: is this the folder of the course?")
    return found


def read(path: Path) -> Lesson:
    """A lesson from its exercise notebook and the solution of the same name."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    solution = path.parents[1] / "solutions" / path.name
    outputs = {}
    if solution.is_file():
        for cell in nbformat.read(solution, as_version=4).cells:
            if cell.cell_type == "code" and nbgrader.is_check(cell):
                outputs[cell.metadata["nbgrader"]["grade_id"]] = cell.outputs
    exercises = [made for section in sections(notebook) for made in _exercises(section, cells)]
    return Lesson(path.name[:2], path.stem, cells, exercises, outputs)


def _exercises(section: list[tuple[int, Any]], cells: list[Any]) -> list[Exercise]:
    """The exercises of a section: an answer cell and the next check cell below it."""
    title = section[0][1].source.splitlines()[0].lstrip("# ") if section[0][1].source else ""
    places = {id(cell): place for place, cell in enumerate(cells)}
    found, answer = [], None
    for _, cell in section:
        if nbgrader.is_answer(cell):
            answer = cell
        elif nbgrader.is_check(cell) and answer is not None:
            meta = cell.metadata["nbgrader"]
            name, in_ranks = answer.metadata["nbgrader"]["grade_id"], answer.source.startswith("%%px")
            where = places[id(answer)], places[id(cell)]
            found.append(Exercise(name, title, meta["points"], meta["grade_id"], *where, in_ranks))
            answer = None
    return found
