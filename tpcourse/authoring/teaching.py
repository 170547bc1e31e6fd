"""TEACHING.md's tables of minutes, made from the notebooks' own: what each says at its top and at each exercise.

`tpcourse build` writes them between two marks; `tpcourse build --check` says when they are not what the notebooks say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tpcourse.authoring.notebook import AuthoringError

FILE = "TEACHING.md"
BEGIN, END = "<!-- minutes: made by `tpcourse build` -->", "<!-- end of minutes -->"
LESSON = re.compile(r"About (\d+) minutes")
EXERCISE = re.compile(r"Difficulty \d of 3 · (\d+) minutes")
BREAK_EVERY, BREAK = 90, 15  # minutes


@dataclass(frozen=True)
class Lesson:
    """A lesson's title and minutes, and those of each exercise by its grade id."""

    title: str
    minutes: int
    exercises: Mapping[str, int]


@dataclass(frozen=True)
class Plan:
    """Sessions of a course: in each, lessons with the exercises done in class; the rest is homework."""

    title: str
    sessions: Sequence[tuple[str, Sequence[tuple[str, Sequence[str]]]]]
    at_home: bool = False


PLANS = (
    Plan("Half a day", [
        ("Until the break", [("00", ()), ("01", ("ring_all_gather",))]),
        ("After it", [("05", ("column_product",))]),
    ]),
    Plan("One day", [
        ("Morning", [("00", ()), ("01", ("ring_all_gather", "ring_reduce_scatter"))]),
        ("Before lunch", [("02", ())]),
        ("Afternoon", [("05", ("column_product", "row_product", "parallel_mlp"))]),
        ("To the end", [("06", ("enter_and_leave",))]),
    ]),
    Plan("Five weeks", [
        ("Week 1", [("00", ()), ("01", ())]),
        ("Week 2", [("02", ()), ("03", ())]),
        ("Week 3", [("04", ("mean_gradients", "bucketed_gradients"))]),
        ("Week 4", [("05", ("column_product",)), ("06", ())]),
        ("Week 5", [("07", ()), ("08", ())]),
    ], at_home=True),
)  # fmt: skip


def lessons(root: Path) -> dict[str, Lesson]:
    """Number -> lesson. Raises: AuthoringError for a notebook that does not say its minutes."""
    found = {}
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        minutes = LESSON.search(cells[0].source)
        if minutes is None:
            raise AuthoringError(f"{path.name} does not say `About 45 minutes` in its first cell")
        title = cells[0].source.splitlines()[0].removeprefix(f"# {path.name[:2]}").strip()
        found[path.name[:2]] = Lesson(title, int(minutes[1]), dict(_exercises(root / "exercises" / path.name)))
    return found


def _exercises(path: Path) -> Iterator[tuple[str, int]]:
    """Grade id and minutes of each exercise of a notebook, in order."""
    minutes = None
    for cell in nbformat.read(path, as_version=4).cells if path.is_file() else []:
        if said := EXERCISE.search(cell.source):
            minutes = int(said[1])
        grades = cell.metadata.get("nbgrader", {})
        if grades.get("solution"):
            if minutes is None:
                raise AuthoringError(f"{path.name}: exercise {grades['grade_id']} does not say its minutes")
            yield grades["grade_id"], minutes
            minutes = None


def tables(known: Mapping[str, Lesson]) -> str:
    """All lessons with their minutes, and the plans, as Markdown."""
    return "\n\n".join([lesson_table(known), *(plan_table(plan, known) for plan in PLANS)])


def lesson_table(known: Mapping[str, Lesson]) -> str:
    """A row for each lesson."""
    rows = ["| lesson | minutes | exercises, with minutes | all exercises |", "|---|---:|---|---:|"]
    for number, lesson in known.items():
        parts = ", ".join(f"{name} {minutes}" for name, minutes in lesson.exercises.items()) or "none"
        rows.append(f"| {number} {lesson.title} | {lesson.minutes} | {parts} | {sum(lesson.exercises.values())} |")
    return "\n".join(rows)


def plan_table(plan: Plan, known: Mapping[str, Lesson]) -> str:
    """One plan: what is done when, its minutes, and how long all of it takes with breaks."""
    last = " at home |" if plan.at_home else ""
    rows = [f"| when | what | minutes |{last}", f"|---|---|---:|{'---:|' if plan.at_home else ''}"]
    total = 0
    for when, items in plan.sessions:
        minutes = sum(in_class(known[number], names) for number, names in items)
        rest = sum(sum(known[number].exercises.values()) for number, _ in items) - minutes
        rest += sum(known[number].minutes for number, _ in items)
        what = "; ".join(", ".join([f"lesson {number}", *names]) for number, names in items)
        rows.append(f"| {when} | {what} | {minutes} |" + (f" {rest} |" if plan.at_home else ""))
        total += minutes
    breaks = 0 if plan.at_home else BREAK * ((total - 1) // BREAK_EVERY)
    sums = f"{total} minutes" + ("" if plan.at_home else f", {total + breaks} with breaks of {BREAK} after each 90")
    return f"### {plan.title}\n\n" + "\n".join(rows) + f"\n\nIn all {sums}."


def in_class(lesson: Lesson, names: Sequence[str]) -> int:
    """Minutes of a lesson with some of its exercises."""
    return lesson.minutes + sum(lesson.exercises[name] for name in names)


def fresh(root: Path) -> tuple[str, str] | None:
    """TEACHING.md as it is and as it should be; None where there is no such file."""
    path = root / FILE
    if not path.is_file():
        return None
    text = path.read_text("utf-8")
    if BEGIN not in text or END not in text:
        raise AuthoringError(f"{FILE} has no marks {BEGIN} and {END}")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    return text, f"{before}{BEGIN}\n\n{tables(lessons(root))}\n\n{END}{after}"
