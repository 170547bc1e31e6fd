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
    seen: dict[str, list[str]] = field(default_factory=dict)  # a sentence -> the exercises it is about

    def note(self, sentence: str, name: str) -> None:
        """Say something of an exercise; `{}` in the sentence stands for its name."""
        self.seen.setdefault(sentence, []).append(name)

    def finish(self) -> Matched:
        """One note for all exercises of which the same is to be said."""
        self.notes += [sentence.format(", ".join(names)) for sentence, names in self.seen.items()]
        return self


def match(lesson: Lesson, submitted: Submitted) -> Matched:
    """Take the answers, and nothing else."""
    found = Matched(notes=list(submitted.notes))
    places = []
    for exercise in lesson.exercises:
        cells, how = candidates(lesson, exercise, submitted.cells)
        if not cells:
            found.note("There is no answer cell for {}.", exercise.name)
            continue
        if how:
            found.note(f"Without its grade id, and found by {how}: {{}}.", exercise.name)
        chosen = _chosen(lesson, exercise, cells, found)
        if len(chosen) > LONGEST:
            found.note(f"Longer than {LONGEST} characters, and not run: {{}}.", exercise.name)
            continue
        found.answers[exercise.name] = chosen
        places.append(submitted.cells.index(cells[-1]))
    if places != sorted(places):
        found.notes.append("The answers stand in another order; they were run in the order of the lesson.")
    _look_at_checks(lesson, submitted.cells, found)
    return found.finish()


def score(lesson: Lesson, submitted: Submitted) -> int:
    """How many exercises of this lesson the notebook seems to answer."""
    return sum(bool(candidates(lesson, exercise, submitted.cells)[0]) for exercise in lesson.exercises)


def candidates(lesson: Lesson, exercise: Exercise, cells: list[Cell]) -> tuple[list[Cell], str]:
    """The cells that may hold an answer, and how they were found if not by grade id."""
    code = [cell for cell in cells if cell.is_code and not cell.is_check]
    by_grade_id = [cell for cell in code if cell.grade_id == exercise.name]
    if by_grade_id:
        return by_grade_id, ""
    own_id = lesson.cells[exercise.answer].get("id")
    by_id = [cell for cell in code if own_id and cell.id == own_id]
    by_content = [cell for cell in code if exercise.name in defines(cell.source)]
    return by_id or by_content, "its cell id" if by_id else "the function that it defines"


def _chosen(lesson: Lesson, exercise: Exercise, cells: list[Cell], found: Matched) -> str:
    """The last cell that was written in; together with others if it was split."""
    texts = list(dict.fromkeys(cell.source for cell in cells))
    written = [text for text in texts if not is_stub(text, lesson.cells[exercise.answer].source)] or texts
    if len(cells) == 1:
        return written[-1]
    parts = [text for text in written[:-1] if defines(text) - defines(written[-1])]
    if parts and exercise.name not in set().union(*map(defines, parts)):
        found.note("Split over several cells, which were joined: {}.", exercise.name)
        return "\n\n".join([parts[0], *(_body(text) for text in [*parts[1:], written[-1]])])
    found.note("There more than once, and the last that was written in counts: {}.", exercise.name)
    return written[-1]


def is_stub(text: str, official: str) -> bool:
    """Whether an answer is as it was handed out, or empty."""
    return not text.strip() or text.strip() == official.strip()


def defines(source: str) -> set[str]:
    """The functions and classes that a cell defines at its top level; none of a cell that is too long to be run."""
    if len(source) > LONGEST:
        return set()
    try:
        nodes: Iterable[ast.stmt] = ast.parse(_body(source)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(re.findall(r"^(?:def|class)\s+(\w+)", source, re.MULTILINE))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _body(source: str) -> str:
    return re.sub(r"\A\s*%%[^\n]*\n", "", source)


def _look_at_checks(lesson: Lesson, cells: list[Cell], found: Matched) -> None:
    for exercise in lesson.exercises:
        official = lesson.cells[exercise.check].source.strip()
        own = [cell for cell in cells if cell.is_code and cell.grade_id == exercise.check_id]
        if any(cell.source.strip() != official for cell in own):
            found.note("The check cell was edited, and the official one was run: {}.", exercise.name)
