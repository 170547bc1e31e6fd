"""Grades on the disk: one file a submission, written whole; tables made of them. A kill at any moment loses none."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import platform
import xml.etree.ElementTree as xml
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import tpcourse
from tpcourse.authoring.build import write
from tpcourse.check.report import BLOCKED, NOT_STARTED, PASSED
from tpcourse.grade.find import Submission
from tpcourse.grade.official import Lesson
from tpcourse.grade.run import Grade
from tpcourse.grade.verdict import Result

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet would run


@cache
def versions() -> dict[str, str]:
    """What graded: Python and packages, and a digest of the course's own code."""
    names = ("torch", "ipyparallel", "ipykernel", "nbval", "numpy")
    found = {"tpcourse": tpcourse.__version__, "python": platform.python_version()}
    for name in names:
        found[name] = metadata.version(name)
    code = hashlib.sha256()
    for path in sorted(Path(tpcourse.__file__).parent.rglob("*.py")):
        code.update(path.read_bytes())
    return {**found, "code": code.hexdigest()[:16]}


def digest_of(submission: Submission, lessons: dict[str, Lesson], settings: object) -> str:
    """Changes with whatever a grade depends on: the file, its name, official cells, code, versions, limits."""
    found = hashlib.sha256(submission.data)
    official = {number: lesson.digest for number, lesson in lessons.items()}
    about = [submission.student, submission.lesson, submission.name, submission.problem, submission.notes]
    found.update(json.dumps([about, official, versions(), repr(settings)], sort_keys=True).encode())
    return found.hexdigest()


def _row(out: Path, digest: str) -> Path:
    return out / "rows" / f"{digest}.json"


def save(out: Path, made: Grade) -> None:
    """Keep a finished grade."""
    data = json.dumps(asdict(made), ensure_ascii=False, indent=1).encode()
    path = _row(out, made.digest)
    write(path, data)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(out: Path, digest: str) -> Grade | None:
    """A grade that was finished before, if it is whole."""
    try:
        data = json.loads(_row(out, digest).read_text("utf-8"))
        return Grade(**{**data, "results": [Result(**result) for result in data["results"]]})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_tables(out: Path, grades: list[Grade]) -> None:
    """grades.csv, grades.json and grades.xml of all grades."""
    write(out / "grades.csv", table(grades).encode("utf-8-sig"))
    about = {"versions": versions(), "submissions": [shown(grade) for grade in grades]}
    write(out / "grades.json", (json.dumps(about, ensure_ascii=False, indent=1) + "\n").encode())
    write(out / "grades.xml", junit(grades))


def shown(grade: Grade) -> dict[str, Any]:
    """A grade as in grades.json."""
    return {**asdict(grade), "points": grade.points, "possible": sum(result.possible for result in grade.results)}


def table(grades: Iterable[Grade]) -> str:
    """A row a student, a column an exercise; 0 points are 0, and a submission that could not be read has a row too."""
    grades = list(grades)
    columns = list(dict.fromkeys(result.name for grade in grades for result in grade.results))
    rows: dict[str, dict[str, Any]] = {}
    for grade in grades:
        row = rows.setdefault(grade.student, {"points": 0, "possible": 0, "remarks": []})
        for result in grade.results:
            row[result.name] = _number(result.points)
            row["points"] += result.points
            row["possible"] += result.possible
        row["remarks"] += [text for text in (grade.problem, grade.fault.split("\n")[0]) if text]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["student", *columns, "points", "possible", "remarks"])
    for student, row in sorted(rows.items()):
        numbers = [row.get(name, "") for name in columns]
        totals = [_number(row["points"]), _number(row["possible"])]
        writer.writerow([_text(student), *numbers, *totals, _text("; ".join(row["remarks"]))])
    return text.getvalue()


def _number(points: float) -> float | int:
    return int(points) if points == int(points) else points


def _text(value: str) -> str:
    return f"'{value}" if value.startswith(FORMULA) else value


def junit(grades: Iterable[Grade]) -> bytes:
    """JUnit XML: a suite a submission, a case an exercise."""
    root = xml.Element("testsuites")
    for grade in grades:
        bad = sum(result.state not in (PASSED, BLOCKED, NOT_STARTED) for result in grade.results)
        idle = sum(result.state in (BLOCKED, NOT_STARTED) for result in grade.results)
        counts = {"tests": str(len(grade.results)), "failures": str(bad), "skipped": str(idle), "errors": "0"}
        name = _xml_text(f"{grade.student} {grade.lesson}")
        suite = xml.SubElement(root, "testsuite", {"name": name, "time": f"{grade.seconds:.2f}", **counts})
        for result in grade.results:
            case = xml.SubElement(suite, "testcase", classname=_xml_text(grade.student), name=result.name)
            if result.state in (BLOCKED, NOT_STARTED):
                xml.SubElement(case, "skipped", message=result.state)
            elif result.state != PASSED:
                failure = xml.SubElement(case, "failure", message=_xml_text(result.why or result.state))
                failure.text = _xml_text(result.feedback)
    return xml.tostring(root, encoding="utf-8", xml_declaration=True)


def _xml_text(text: str) -> str:
    return "".join(
        letter if letter in "\n\t" or (letter >= " " and letter not in "\ufffe\uffff") else "\ufffd" for letter in text
    )
