"""A solution becomes an exercise: answers and hidden tests out, check cells kept and locked."""

from __future__ import annotations

import copy
import re

from tpcourse.authoring import nbgrader
from tpcourse.authoring.notebook import AuthoringError, Cell, Notebook, set_ids, where

MARKER = re.compile(r"^([ \t]*)### (BEGIN|END) (SOLUTION|HIDDEN TESTS)[ \t]*$")


def to_exercise(solution: Notebook, name: str) -> Notebook:
    """The exercise of a solution notebook: same cells, each answer a stub that raises, no outputs.

    Raises: `AuthoringError` naming `name` and the cell: markers without a match, an answer or check alone.
    """
    exercise = copy.deepcopy(solution)
    for index, cell in enumerate(exercise.cells):
        try:
            cell.source = _without_answer(cell)
        except AuthoringError as error:
            raise AuthoringError(f"{name}: {where(cell, index)}: {error}") from error
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    problem = _unpaired(exercise)
    if problem:
        raise AuthoringError(f"{name}: {problem}")
    set_ids(exercise)
    return exercise


def _without_answer(cell: Cell) -> str:
    lines: list[str] = []
    answers = 0
    removed = None  # the region that we are in
    for line in cell.source.splitlines():
        match = MARKER.match(line)
        if not match and re.search(r"#\s*(BEGIN|END)\b", line):
            raise AuthoringError(f"`{line.strip()}` is no marker; it must stand alone: ### BEGIN SOLUTION")
        if match:
            removed = _next_region(removed, match, lines, cell)
            answers += match[3] == "SOLUTION"
        elif removed is None:
            lines.append(line)
    if removed:
        raise AuthoringError(f"### BEGIN {removed} has no ### END {removed}")
    if nbgrader.is_answer(cell) and not answers:
        raise AuthoringError("an answer cell without ### BEGIN SOLUTION: its answer would be published")
    return "\n".join(lines)


def _next_region(removed: str | None, match: re.Match[str], lines: list[str], cell: Cell) -> str | None:
    indent, side, region = match.groups()
    if side == "END":
        if removed != region:
            raise AuthoringError(f"### END {region} without ### BEGIN {region} before it")
        return None
    if removed:
        raise AuthoringError(f"### BEGIN {region} before ### END {removed}")
    if region == "SOLUTION":
        if not nbgrader.is_answer(cell):
            raise AuthoringError('### BEGIN SOLUTION, but not nbgrader={"grade_id": ..., "solution": true}')
        grade_id = cell.metadata["nbgrader"]["grade_id"]
        lines.append(f'{indent}raise NotImplementedError("write your answer to {grade_id} here")')
    elif not nbgrader.is_check(cell):
        raise AuthoringError("### BEGIN HIDDEN TESTS outside a check cell")
    return region


def sections(notebook: Notebook) -> list[list[tuple[int, Cell]]]:
    """The cells with their numbers, divided at each markdown cell that begins with a heading of level 2."""
    parts: list[list[tuple[int, Cell]]] = [[]]
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown" and cell.source.lstrip().startswith("## "):
            parts.append([])
        parts[-1].append((index, cell))
    return [part for part in parts if part]


def _unpaired(notebook: Notebook) -> str | None:
    for section in sections(notebook):
        answered = False
        checked = True
        for index, cell in section:
            if nbgrader.is_answer(cell):
                answered, checked, last = True, cell.metadata["nbgrader"].get("grade", False), (cell, index)
            elif nbgrader.is_check(cell):
                if not answered:
                    return f"{where(cell, index)}: a check cell without an answer cell above it in its section"
                checked = True
        if not checked:
            return f"{where(*last)}: an answer cell without a check cell below it in its section"
    return None
