"""From a run's report to states and points. Whatever is not proven to be right has failed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from tpcourse.authoring.outputs import ANSI
from tpcourse.check.report import BLOCKED, FAILED, NOT_STARTED, PASSED
from tpcourse.grade.official import Exercise, Lesson

STATES = (PASSED, FAILED, BLOCKED, NOT_STARTED)
ENDED = {
    "time": "the submission's time was used up",
    "memory": "it used more memory than a submission may",
    "files": "it wrote more than a submission may",
    "crashed": "it ended the run",
    "done": "it was not reached",
    "none": "the run ended without a report",
}


@dataclass
class Result:
    """One exercise of one student."""

    name: str
    title: str
    possible: float
    state: str = FAILED
    points: float = 0
    feedback: str = ""
    why: str = ""
    hint: str = ""
    axes: list[dict[str, str]] = field(default_factory=list)  # axis, state, text
    figures: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Outcome:
    """What a run settled: results by name, the exercise that broke it off, if one did, and whether we did ourselves."""

    results: dict[str, Result] = field(default_factory=dict)
    broken: str = ""
    fault: str = ""


def judge(lesson: Lesson, report: dict[str, Any] | None, wanted: Collection[str]) -> Outcome:
    """Settle the wanted exercises up to the first that lost the kernel or the ranks; the rest needs another run."""
    report = report or {"ended": "none", "cells": [], "verdicts": []}
    cells = {note["cell"]: note for note in report["cells"]}
    outcome = Outcome()
    for exercise in lesson.exercises:
        culprit = _breaks(report, cells, exercise)
        if exercise.name in wanted:
            outcome.results[exercise.name] = settle(exercise, report, cells)
        if culprit and outcome.results:
            outcome.broken = exercise.name
            return outcome
        if culprit:
            break
    unfinished = [name for name in wanted if name not in outcome.results]
    if unfinished or not _prepared(lesson, cells):
        outcome.fault = _fault(report, cells)
    return outcome


def _prepared(lesson: Lesson, cells: dict[int, Any]) -> bool:
    """Whether the official cells before the first answer ran: if not, that is no student's fault."""
    first = min(exercise.answer for exercise in lesson.exercises)
    return all(cells.get(place, {}).get("outcome") == "passed" for place in range(first))


def _fault(report: dict[str, Any], cells: dict[int, Any]) -> str:
    failed = next((note for note in cells.values() if note["outcome"] != "passed"), None)
    text = failed["message"] if failed else report.get("log", "")
    return f"The grader could not run the official cells ({report['ended']}): {text[-1500:]}"


def _breaks(report: dict[str, Any], cells: dict[int, Any], exercise: Exercise) -> bool:
    """Whether this exercise's cells lost the kernel, the ranks or the run."""
    for place in (exercise.answer, exercise.check):
        note = cells.get(place)
        if note is None or _lost_it(note):
            return True
        if any(v["cell"] == place and v.get("renewed") for v in report["verdicts"]):
            return True
    return False


def settle(exercise: Exercise, report: dict[str, Any], cells: dict[int, Any]) -> Result:
    """One exercise. A point needs a cell that ended well, nbval's comparison, and the check's own verdict."""
    result = Result(exercise.name, exercise.title, exercise.points)
    note, answer = cells.get(exercise.check), cells.get(exercise.answer)
    verdict = _verdict(report, exercise)
    if note is None or note["lost"]:
        result.feedback = _broke(exercise, report, note, answer)
    elif verdict is None:
        late = _late(report, exercise.check)
        result.feedback = "The check ran out of time: is there a loop that does not end?" if late else _raised(note)
    else:
        _take(result, verdict, note["outcome"] == "passed")
    if result.state != PASSED and answer and answer["outcome"] != "passed" and not answer["lost"]:
        endless = "it took longer than its limit: is there a loop that does not end?"
        text = f"The answer's cell: {endless if _late(report, exercise.answer) else _raised(answer)}"
        started = result.state != NOT_STARTED
        result.feedback = f"{result.feedback}\n{text}" if started else f"{exercise.name}: failed\n{text}"
        result.state, result.hint = (result.state, result.hint) if started else (FAILED, "")
    return result


def _take(result: Result, verdict: dict[str, Any], sound: bool) -> None:
    judged = [line["state"] for line in verdict["lines"]]
    state = verdict["state"]
    if judged and all(one == BLOCKED for one in judged):
        state = BLOCKED
    elif state == PASSED and not sound:
        state = FAILED
        result.feedback = "The check passed, and its cell did not end as the official one does."
    result.state = state if state in STATES else FAILED
    result.points = result.possible if result.state == PASSED else 0
    result.feedback = result.feedback or verdict["text"]
    result.axes, result.figures = verdict["lines"], verdict["figures"]
    result.why, result.hint = verdict["why"], verdict["hint"]


def _verdict(report: dict[str, Any], exercise: Exercise) -> dict[str, Any] | None:
    found = [v for v in report["verdicts"] if v["cell"] == exercise.check and v.get("title") == exercise.name]
    return found[-1] if found and not _late(report, exercise.check) else None


def _late(report: dict[str, Any], place: int) -> bool:
    return any(v["cell"] == place and v.get("late") for v in report["verdicts"])


def _broke(exercise: Exercise, report: dict[str, Any], note: Any, answer: Any) -> str:
    if answer and answer["outcome"] != "passed" and not answer["lost"]:
        return f"{exercise.name}: failed"  # what its cell raised comes below
    if any(v["cell"] == exercise.answer and v.get("renewed") for v in report["verdicts"]):
        return f"{exercise.name}: failed. The answer's cell ended the ranks."
    where = "its check" if answer and answer["outcome"] == "passed" else "the answer's cell"
    for one in (answer, note):
        if one and _lost_it(one):
            return f"{exercise.name}: failed. In {where}: {_words(one)}"
    return f"{exercise.name}: failed. In {where}: {ENDED.get(report['ended'], report['ended'])}."


def _lost_it(note: dict[str, Any]) -> bool:
    """Whether it was this cell that lost the kernel, and not one before it."""
    return bool(note["lost"]) and "not run: cell" not in _words(note)


def _words(note: dict[str, Any]) -> str:
    """The plugin's sentence, out of what pytest makes of it."""
    lines = [ANSI.sub("", line).strip() for line in note["message"].splitlines() if line.strip()]
    return next((line for line in lines if "The cell " in line or "not run: cell" in line), (lines or [""])[0])[:500]


def _raised(note: dict[str, Any]) -> str:
    if note["ename"]:
        first = note["evalue"].strip().splitlines() or [""]
        return f"{note['ename']}: {first[0][:500]}"
    return _words(note) or "it did not end as it should"
