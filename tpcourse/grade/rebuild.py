"""The notebook that is graded: the official code cells and outputs, with the student's text in the answer cells.

Nothing of the student's reaches the kernel: an answer is sent to the ranks as text, behind a first line of ours.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection
from typing import Any

from tpcourse.authoring.notebook import METADATA
from tpcourse.grade.match import Matched
from tpcourse.grade.official import Exercise, Lesson

MAGIC = re.compile(r"%%px(?:[ \t]+(?:--targets|-t)(?:=|[ \t]+)(?P<targets>[\d,-]+))?[ \t]*")
MARKER = re.compile(r"^([ \t]*)#+[ \t]*(?:NBVAL|PYTEST_VALIDATE)_\w+[ \t]*$", re.MULTILINE)
NOTHING = "pass"
CHECKING = re.compile(
    r"\btpcourse\s*\.\s*(check|grade)\b|\bfrom\s+tpcourse\s+import\b[^\n]*\b(check|grade)\b"
    r"|\b(_getframe|currentframe|_current_frames|f_back|f_locals|f_globals|tb_frame|gi_frame)\b"
)
"""An answer that uses the parts of the course that know what is right, or looks around in whoever calls it."""


def notebook(lesson: Lesson, matched: Matched, settled: Collection[str] = (), broken: Collection[str] = ()) -> str:
    """The text of the notebook; `settled` exercises are not checked again, answers of `broken` ones are left out."""
    import nbformat

    cells = [_plain(cell) for cell in lesson.cells]
    for exercise in lesson.exercises:
        text = None if exercise.name in broken else matched.answers.get(exercise.name)
        cells[exercise.answer].source = answer_cell(lesson, exercise, text)
        check = cells[exercise.check]
        if exercise.name in settled:
            check.source = NOTHING
        elif exercise.check_id in lesson.outputs:
            check.update(outputs=copy.deepcopy(lesson.outputs[exercise.check_id]), execution_count=1)
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata=copy.deepcopy(METADATA)))


def _plain(cell: Any) -> Any:
    """An official cell, run and not compared: warnings of new versions cost nothing."""
    found = copy.deepcopy(cell)
    found.update(outputs=[], execution_count=None)
    return found


def answer_cell(lesson: Lesson, exercise: Exercise, text: str | None) -> str:
    """What stands in an answer cell: a call to the ranks with the student's text, or nothing."""
    if text is None or refusal(exercise, text):
        return NOTHING
    text = MARKER.sub(r"\1#", text.lstrip("\n"))
    if not exercise.in_ranks:
        return f"%%px --targets 0\n{_imports(lesson, exercise)}{text}"
    first, _, body = text.partition("\n")
    found = MAGIC.fullmatch(first)
    targets = f" --targets {found['targets']}" if found and found["targets"] else ""
    return f"%%px{targets}\n{body}"


def refusal(exercise: Exercise, text: str) -> str:
    """Why an answer is not run at all: it would not be where the check looks for it, or looks at the check itself."""
    first = text.lstrip("\n").partition("\n")[0]
    if CHECKING.search(text):
        return f"The answer to {exercise.name} uses the part of the course that checks it, and that is no answer."
    if exercise.in_ranks and not MAGIC.fullmatch(first):
        return f"The answer to {exercise.name} does not begin with %%px, so no rank has it."
    if not exercise.in_ranks and first.startswith("%%"):
        return f"The answer to {exercise.name} begins with {first[:20]}; it belongs into a plain cell of the notebook."
    return ""


def _imports(lesson: Lesson, exercise: Exercise) -> str:
    """What the official cells above import: the answer runs in a rank, which has not run them."""
    found = []
    for cell in lesson.cells[: exercise.answer]:
        if not cell.source.startswith("%"):
            nodes = ast.parse(cell.source).body
            found += [ast.unparse(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return "".join(f"{line}\n" for line in dict.fromkeys(found))
