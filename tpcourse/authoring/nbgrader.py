"""nbgrader's cell metadata, schema 3: completed from the short form in a source, and validated."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from tpcourse.authoring.notebook import AuthoringError, Cell, Notebook, where

SCHEMA = 3
FLAGS = ("grade", "locked", "solution", "task")
KEYS = {*FLAGS, "grade_id", "points", "schema_version", "cell_type", "checksum"}


def is_answer(cell: Cell) -> bool:
    """Whether the learner writes this cell."""
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def is_check(cell: Cell) -> bool:
    """Whether this cell is locked and gives points."""
    meta = cell.metadata.get("nbgrader", {})
    return bool(meta.get("grade")) and not meta.get("solution")


def complete(notebook: Notebook) -> None:
    """Fill in what a source leaves out of `nbgrader={...}`: flags, schema version and cell type.

    An answer is `nbgrader={"grade_id": "x", "solution": true}`, a check cell
    `nbgrader={"grade_id": "x_check", "grade": true, "points": 2}`.
    Raises: `AuthoringError` that names the cell: what schema 3 does not allow, or a duplicate grade_id.
    """
    seen: Counter[str] = Counter()
    for index, cell in enumerate(notebook.cells):
        if "nbgrader" not in cell.metadata:
            continue
        meta = _completed(cell)
        problem = first_problem(meta, cell.cell_type)
        if not problem and seen[meta["grade_id"]]:
            problem = f"grade_id {meta['grade_id']!r} is used by an earlier cell"
        if problem:
            raise AuthoringError(f"{where(cell, index)}: {problem}")
        seen[meta["grade_id"]] += 1
        cell.metadata["nbgrader"] = meta
        cell.metadata["deletable"] = False
        if meta["locked"]:
            cell.metadata["editable"] = False


def _completed(cell: Cell) -> dict[str, Any]:
    defaults = {"grade": False, "solution": False, "task": False, "schema_version": SCHEMA}
    meta = {**defaults, "cell_type": cell.cell_type, **cell.metadata["nbgrader"]}
    meta.setdefault("locked", not meta["solution"] and not meta["task"])
    return meta


def first_problem(meta: dict[str, Any], cell_type: str) -> str | None:
    """What nbgrader's schema 3 finds wrong in one cell's metadata, in a sentence; None if nothing.

    The rules are those of nbgrader 0.9, `nbgraderformat/v3.json` and `v3.py`.
    """
    unknown = set(meta) - KEYS
    if unknown:
        return f"nbgrader does not know {', '.join(sorted(unknown))}"
    if meta.get("schema_version") != SCHEMA:
        return f"schema_version is {meta.get('schema_version')!r}, not {SCHEMA}"
    for flag in FLAGS:
        if not isinstance(meta.get(flag), bool):
            return f"{flag} is {meta.get(flag)!r}, not true or false"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", str(meta.get("grade_id", ""))):
        return f"grade_id {meta.get('grade_id')!r} must be letters, digits, - and _"
    if meta.get("cell_type") != cell_type:
        return f"cell_type says {meta.get('cell_type')!r} and the cell is {cell_type}"
    return _points(meta) or _roles(meta, cell_type)


def _points(meta: dict[str, Any]) -> str | None:
    points = meta.get("points")
    if not meta["grade"]:
        return "points on a cell that is not graded" if points is not None else None
    if isinstance(points, bool) or not isinstance(points, (int, float)) or points < 0:
        return f"a graded cell needs points of 0 or more, not {points!r}"
    return None


def _roles(meta: dict[str, Any], cell_type: str) -> str | None:
    grade, solution, task = meta["grade"], meta["solution"], meta["task"]
    if task:
        return None if cell_type == "markdown" else "a task must be a markdown cell"
    if solution and meta["locked"]:
        return "an answer cell cannot be locked"
    if grade and not solution and not meta["locked"]:
        return "a check cell must be locked"
    if cell_type == "markdown" and grade != solution:
        return "a markdown cell that is graded must be an answer, and the other way round"
    return None
