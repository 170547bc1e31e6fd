"""Grade one submission: read, match, run, and run again without what broke the run off."""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
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

LEAST_S = 5.0  # in less than that no run gets anywhere
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


@dataclass(frozen=True)
class Bench:
    """All that a run needs beside its notebook; `number` gives another number at each call."""

    nursery: Nursery
    place: Place
    limits: Limits
    number: Callable[[], int]

    def run(self, notebook: str, limit_s: float) -> dict[str, Any] | None:
        """One run; its report, or None if there is none in time."""
        limits = replace(self.limits, total_s=limit_s)
        task = self.place.task(notebook, limits, self.number())
        data, end_s = b"", time.monotonic() + limit_s + SECONDS_AFTER
        with self.nursery.task(task) as connection, suppress(TimeoutError, ConnectionError):
            connection.settimeout(limit_s + SECONDS_AFTER)
            while time.monotonic() < end_s and (part := connection.recv(1 << 20)):
                data += part
        shutil.rmtree(task["private"], ignore_errors=True)  # empty: what was in it was in memory
        with suppress(ValueError):
            return json.loads(data)
        return None


def grade(submission: Submission, lessons: dict[str, Lesson], bench: Bench) -> Grade:
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
        Runs(made, lesson, match(lesson, submitted), bench).all()
    made.seconds = time.monotonic() - begin_s
    return made


def _waiting(exercise: Exercise) -> Result:
    return Result(exercise.name, exercise.title, exercise.points, state=NOT_STARTED)


class Runs:
    """The runs of one submission: each further one leaves out the answer that broke the last one off."""

    def __init__(self, made: Grade, lesson: Lesson, matched: Matched, bench: Bench) -> None:
        self.made, self.lesson, self.matched, self.bench = made, lesson, matched, bench
        self.results: dict[str, Result] = {}
        self.broken: list[str] = []
        made.notes += matched.notes

    def all(self) -> None:
        """Run until every exercise is settled, or the submission's time is used up."""
        for exercise in self.lesson.exercises:
            self._settle_at_once(exercise)
        end_s = time.monotonic() + self.bench.limits.total_s
        while left := [one for one in self.lesson.exercises if one.name not in self.results]:
            left_s = end_s - time.monotonic()
            if left_s < LEAST_S or not self._once(left, left_s):
                break
        for exercise in self.lesson.exercises:
            feedback = "Not judged: the submission's time was used up."
            unjudged = Result(exercise.name, exercise.title, exercise.points, feedback=feedback)
            self.results.setdefault(exercise.name, unjudged)
        self.made.results = [self.results[exercise.name] for exercise in self.lesson.exercises]

    def _settle_at_once(self, exercise: Exercise) -> None:
        """What was not written, or cannot be run, needs no run."""
        text = self.matched.answers.get(exercise.name)
        if text is None or is_stub(text, self.lesson.cells[exercise.answer].source):
            self.results[exercise.name] = _waiting(exercise)
        elif refused := rebuild.refusal(exercise, text):
            self.results[exercise.name] = Result(exercise.name, exercise.title, exercise.points, feedback=refused)

    def _once(self, left: list[Exercise], left_s: float) -> bool:
        """One run; whether another one can settle more."""
        made = self.made
        report = self.bench.run(rebuild.notebook(self.lesson, self.matched, self.results, self.broken), left_s)
        made.runs += 1
        if report:
            made.isolation, made.peak_bytes = report["isolation"], max(made.peak_bytes, report["peak_bytes"])
        outcome = verdict.judge(self.lesson, report, [exercise.name for exercise in left])
        self.results |= outcome.results
        made.fault = outcome.fault
        self.broken += [outcome.broken] if outcome.broken else []
        return bool(outcome.broken) and not made.fault
