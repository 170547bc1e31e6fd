"""Grade one submission: read, match, run, and run again without what broke the run off."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tpcourse
from tpcourse.check.report import NOT_STARTED
from tpcourse.grade import rebuild, verdict
from tpcourse.grade.cage import Limits
from tpcourse.grade.find import Submission
from tpcourse.grade.match import Matched, is_stub, match, score
from tpcourse.grade.nursery import Nursery
from tpcourse.grade.official import Exercise, Lesson
from tpcourse.grade.reading import Unreadable, read_cells
from tpcourse.grade.verdict import Result

SECONDS_AFTER = 30  # what a warden may take longer than its own limit


@dataclass
class Grade:
    """What came of one submission."""

    student: str
    lesson: str
    source: str
    digest: str
    results: list[Result]
    notes: list[str] = field(default_factory=list)
    problem: str = ""
    fault: str = ""  # ours: such a grade is not kept
    runs: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    isolation: dict[str, Any] = field(default_factory=dict)

    @property
    def points(self) -> float:
        return sum(result.points for result in self.results)


@dataclass(frozen=True)
class Place:
    """Where runs happen: private folders, what no run may see, what answers may not see."""

    base: Path
    hidden: tuple[Path, ...]
    secret: tuple[Path, ...]

    def task(self, notebook: str, limits: Limits, number: int) -> dict[str, Any]:
        """The warden's task."""
        private = self.base / f"r{number}"
        private.mkdir(mode=0o700)
        kept = {Path(sys.prefix), Path(sys.base_prefix), Path(tpcourse.__file__).parent, *_packages()}
        return {
            "private": str(private),
            "notebook": notebook,
            "salt": secrets.token_hex(8),
            "kept": sorted(str(path) for path in kept),
            "hidden": [str(path) for path in self.hidden],
            "secret": [str(path) for path in (*self.hidden, *self.secret, self.base)],
            "limits": asdict(limits),
        }


def _packages() -> list[Path]:
    names = [Path(name) for name in sys.path if "site-packages" in name or "dist-packages" in name]
    return [path for path in names if path.is_dir()]


def lesson_of(submission: Submission, cells: Any, lessons: dict[str, Lesson]) -> tuple[Lesson | None, str]:
    """Which lesson a notebook is graded as, and what is wrong with that."""
    scores = {number: score(lesson, cells) for number, lesson in lessons.items()} if cells else {}
    best = max(scores, key=lambda number: scores[number], default="")
    named = lessons.get(submission.lesson)
    if named is None:
        found = lessons.get(best) if best and scores[best] else None
        return found, "" if found else "no exercise of the course was recognised in it"
    if cells and not scores[named.number] and scores[best]:
        return named, f"it is the notebook of lesson {best}, handed in under the name of lesson {named.number}"
    return named, ""


def grade(
    submission: Submission, lessons: dict[str, Lesson], nursery: Nursery, place: Place, limits: Limits, number: Callable[[], int]
) -> Grade:
    """The grade of one submission; never raises for what a student wrote."""
    begin_s = time.monotonic()
    problem, submitted = submission.problem, None
    if not problem:
        try:
            submitted = read_cells(submission.data)
        except Unreadable as error:
            problem = str(error)
    lesson, wrong = lesson_of(submission, submitted, lessons)
    problem = problem or wrong
    made = Grade(submission.student, lesson.number if lesson else submission.lesson, submission.name, "", [])
    made.notes += submission.notes
    if lesson is not None:
        made.results = [_waiting(exercise) for exercise in lesson.exercises]
    if problem or lesson is None or submitted is None:
        made.problem = problem
    else:
        _run_all(made, lesson, match(lesson, submitted), nursery, place, limits, number)
    made.seconds = time.monotonic() - begin_s
    return made


def _waiting(exercise: Exercise) -> Result:
    return Result(exercise.name, exercise.title, exercise.points, state=NOT_STARTED)


def _run_all(
    made: Grade, lesson: Lesson, matched: Matched, nursery: Nursery, place: Place, limits: Limits, number: Callable[[], int]
) -> None:
    """Run until every exercise is settled; each further run leaves out the one that broke the last one off."""
    made.notes += matched.notes
    results: dict[str, Result] = {}
    broken: list[str] = []
    end_s = time.monotonic() + limits.total_s
    for exercise in lesson.exercises:
        text = matched.answers.get(exercise.name)
        if text is None or is_stub(text, lesson.cells[exercise.answer].source):
            results[exercise.name] = _waiting(exercise)
        elif refused := rebuild.refusal(exercise, text):
            results[exercise.name] = replace(_waiting(exercise), feedback=refused)
    while wanted := [one.name for one in lesson.exercises if one.name not in results]:
        left_s = end_s - time.monotonic()
        if left_s < 5:
            results |= {name: _out_of_time(lesson, name) for name in wanted}
            break
        notebook = rebuild.notebook(lesson, matched, results, broken)
        report = run(nursery, place.task(notebook, replace(limits, total_s=left_s), number()), left_s)
        made.runs += 1
        made.isolation = (report or {}).get("isolation", made.isolation)
        made.peak_bytes = max(made.peak_bytes, (report or {}).get("peak_bytes", 0))
        outcome = verdict.judge(lesson, report, wanted)
        results |= outcome.results
        if outcome.broken:
            broken.append(outcome.broken)
        elif not outcome.results or outcome.fault:
            made.fault = outcome.fault
            results |= {name: Result(name, "", 0) for name in wanted if name not in results}
            break
    made.results = [results[exercise.name] for exercise in lesson.exercises]
    for result, exercise in zip(made.results, lesson.exercises, strict=True):
        result.title, result.possible = exercise.title, exercise.points


def _out_of_time(lesson: Lesson, name: str) -> Result:
    exercise = next(one for one in lesson.exercises if one.name == name)
    return Result(name, exercise.title, exercise.points, feedback="Not judged: the submission's time was used up.")


def run(nursery: Nursery, task: dict[str, Any], limit_s: float) -> dict[str, Any] | None:
    """One run; its report, or None if there is none in time."""
    data = b""
    private = Path(task["private"])
    with nursery.task(task) as connection:
        connection.settimeout(limit_s + SECONDS_AFTER)
        end_s = time.monotonic() + limit_s + SECONDS_AFTER
        try:
            while time.monotonic() < end_s and (part := connection.recv(1 << 20)):
                data += part
        except (TimeoutError, socket.timeout, ConnectionError):
            pass
    try:
        private.rmdir()  # empty: what was in it was in memory
    except OSError:
        import shutil

        shutil.rmtree(private, ignore_errors=True)
    try:
        return json.loads(data) if data else None
    except ValueError:
        return None
