"""Which of a student's cells answers which exercise: by grade id, then by cell id, then by what it defines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tpcourse.grade.official import Exercise, Lesson
from tpcourse.grade.reading import LONGEST, Cell, Submitted



@dataclass
class Matched:
    """The text of each answer that was found, by exercise, and what the teacher and student should know."""

    answers: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def match(lesson: Lesson, submitted: Submitted) -> Matched:
    """Take the answers, and nothing else."""
    found = Matched(notes=list(submitted.notes))
    places = []
    for exercise in lesson.exercises:
        cells = _candidates(lesson, exercise, submitted.cells, found.notes)
        if not cells:
            found.notes.append(f"The answer cell of {exercise.name} is not there.")
            continue
        chosen = _chosen(lesson, exercise, cells, found.notes)
        if len(chosen) > LONGEST:
            found.notes.append(f"The answer to {exercise.name} is longer than {LONGEST} characters, and was not run.")
            continue
        found.answers[exercise.name] = chosen
        places.append(submitted.cells.index(cells[-1]))
    if places != sorted(places):
        found.notes.append("The answers stand in another order; they were run in the order of the lesson.")
    _look_at_checks(lesson, submitted.cells, found.notes)
    return found


def score(lesson: Lesson, submitted: Submitted) -> int:
    """How many exercises of this lesson the notebook seems to answer."""
    return sum(bool(_candidates(lesson, exercise, submitted.cells, [])) for exercise in lesson.exercises)


def _candidates(lesson: Lesson, exercise: Exercise, cells: list[Cell], notes: list[str]) -> list[Cell]:
    code = [cell for cell in cells if cell.is_code and not cell.is_check]
    by_grade_id = [cell for cell in code if cell.grade_id == exercise.name]
    if by_grade_id:
        return by_grade_id
    own_id = lesson.cells[exercise.answer].get("id")
    by_id = [cell for cell in code if own_id and cell.id == own_id]
    by_content = [cell for cell in code if exercise.name in defines(cell.source)]
    if (by_id or by_content) and notes is not None:
        how = "its cell id" if by_id else f"the function {exercise.name}"
        notes.append(f"The answer to {exercise.name} had lost its grade id and was found by {how}.")
    return by_id or by_content


def _chosen(lesson: Lesson, exercise: Exercise, cells: list[Cell], notes: list[str]) -> str:
    """The last cell that was written in; together with others if it was split."""
    texts = list(dict.fromkeys(cell.source for cell in cells))
    written = [text for text in texts if not is_stub(text, lesson.cells[exercise.answer].source)] or texts
    if len(cells) == 1:
        return written[-1]
    parts = [text for text in written[:-1] if defines(text) - defines(written[-1])]
    if parts and exercise.name not in set().union(*map(defines, parts)):
        notes.append(f"The answer to {exercise.name} is split over {len(parts) + 1} cells; they were joined.")
        return "\n\n".join([parts[0], *(_body(text) for text in [*parts[1:], written[-1]])])
    notes.append(f"The answer cell of {exercise.name} is there {len(cells)} times; the last one that was written in counts.")
    return written[-1]


def is_stub(text: str, official: str) -> bool:
    """Whether an answer is as it was handed out, or empty."""
    return not text.strip() or text.strip() == official.strip()


def defines(source: str) -> set[str]:
    """The functions and classes that a cell defines at its top level."""
    try:
        nodes: Iterable[ast.stmt] = ast.parse(_body(source)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(re.findall(r"^(?:def|class)\s+(\w+)", source, re.MULTILINE))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _body(source: str) -> str:
    return re.sub(r"\A\s*%%[^\n]*\n", "", source)


def _look_at_checks(lesson: Lesson, cells: list[Cell], notes: list[str]) -> None:
    for exercise in lesson.exercises:
        official = lesson.cells[exercise.check].source.strip()
        own = [cell for cell in cells if cell.is_code and cell.grade_id == exercise.check_id]
        if any(cell.source.strip() != official for cell in own):
            notes.append(f"The check cell of {exercise.name} was edited; the official one was run.")
