"""HTML: a feedback page a student, and one of the class. No scripts, nothing loaded; for screen, phone and paper."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from html import escape
from pathlib import Path
from textwrap import shorten

from tpcourse.authoring.build import write
from tpcourse.check.report import BLOCKED, FAILED, NOT_STARTED, PASSED
from tpcourse.grade.official import Lesson
from tpcourse.grade.run import Grade
from tpcourse.grade.style import STYLE
from tpcourse.grade.verdict import Result

MARKS = {PASSED: "✓", FAILED: "✗", BLOCKED: "–", NOT_STARTED: "○"}
WORDS = {PASSED: "passed", FAILED: "failed", BLOCKED: "blocked (needs a GPU)", NOT_STARTED: "not started"}
SECURE = "default-src 'none'; style-src 'unsafe-inline'"
CASE = re.compile(r"\s*\(?at \d+ ranks(, \w+ = [^,;)\s]+)*\)?")
OFTEN = 3  # misconceptions shown of an exercise


def write_pages(out: Path, grades: list[Grade], lessons: dict[str, Lesson]) -> None:
    """index.html, and a page for each grade in students/."""
    for grade in grades:
        write(out / "students" / file_name(grade), student_page(grade).encode())
    write(out / "index.html", class_page(grades, lessons).encode())


def file_name(grade: Grade) -> str:
    """A name that every file system takes and no other student has."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", grade.student).strip("-")[:40] or "student"
    number = hashlib.sha256(f"{grade.student}\0{grade.lesson}\0{grade.source}".encode()).hexdigest()[:8]
    return f"{plain}-{grade.lesson or 'unknown'}-{number}.html"


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{SECURE}">\n'
        f"<style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def _number(points: float) -> str:
    return f"{points:g}"


def student_page(grade: Grade) -> str:
    """What one student gets to read: result, misconception and hint of each exercise; never the source of a check."""
    possible = sum(result.possible for result in grade.results)
    body = [f"<h1>{escape(grade.student)}</h1>", f'<p class="sub">Lesson {escape(grade.lesson or "not known")}</p>']
    if grade.results:
        body.append(f'<p class="total"><b>{_number(grade.points)}</b> of {_number(possible)} points</p>')
    if grade.problem:
        body.append(f'<p class="problem">Not graded: {escape(grade.problem)}.</p>')
    if grade.fault:
        body.append('<p class="problem">The grader itself failed here; ask your teacher to grade it again.</p>')
    if grade.notes:
        body.append("<h2>Noticed</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in grade.notes) + "</ul>")
    body += [] if grade.problem else [_exercise(result) for result in grade.results]
    return _page(f"{grade.student}: lesson {grade.lesson}", "\n".join(body))


def _exercise(result: Result) -> str:
    kind = result.state.replace(" ", "-")
    parts = [
        f'<section class="{kind}"><h2>{escape(result.title or result.name)}</h2>',
        f'<p class="state"><span>{MARKS[result.state]} {WORDS[result.state]}</span> '
        f"{_number(result.points)} of {_number(result.possible)} points</p>",
    ]
    if result.why:
        parts.append(f'<p class="why">{escape(_flowing(result.why))}</p>')
    if result.hint:
        parts.append(f'<p class="hint"><b>Hint</b> {escape(_flowing(result.hint))}</p>')
    if result.axes:
        parts.append(f"<dl>{''.join(map(_axis, result.axes))}</dl>")
    if text := _rest(result):
        parts.append(f"<pre>{escape(text)}</pre>")
    if result.figures:
        parts.append(_figures(result))
    return "\n".join([*parts, "</section>"])


def _flowing(text: str) -> str:
    return " ".join(text.split())


def _axis(axis: dict[str, str]) -> str:
    mark = MARKS.get(axis["state"], "·")
    kind = axis["state"].replace(" ", "-")
    return (
        f'<dt>{escape(axis["axis"])}</dt><dd class="{kind}"><span>{mark}</span> {escape(_flowing(axis["text"]))}</dd>'
    )


def _rest(result: Result) -> str:
    """What was said beside the check's own block; all of it where there was no such block."""
    lines = result.feedback.splitlines()
    if not result.axes and not result.hint:
        return "\n".join(line for line in lines if line != f"{result.name}: {result.state}")
    return "\n".join(line for line in lines if line.startswith("The answer's cell"))


def _figures(result: Result) -> str:
    rows = "".join(
        f"<tr><td>{escape(one['case'])}</td><td>{escape(_calls(one['calls']))}</td><td>{one['carried_bytes']:,}</td></tr>"
        for one in result.figures
    )
    head = "<tr><th>case</th><th>calls of a rank</th><th>bytes they carry</th></tr>"
    table = f'<div class="wide"><table>{head}{rows}</table></div>'
    return f"<details open><summary>What your ranks sent</summary>{table}</details>"


def _calls(calls: dict[str, int]) -> str:
    return ", ".join(f"{count} {op}" for op, count in calls.items()) or "none"


def class_page(grades: list[Grade], lessons: dict[str, Lesson]) -> str:
    """The class: what failed most and why, then everybody."""
    numbers = sorted({grade.lesson for grade in grades if grade.lesson in lessons})
    body = ["<h1>Grades</h1>", f'<p class="sub">{len(grades)} submissions</p>']
    for number in numbers:
        of_lesson = [grade for grade in grades if grade.lesson == number]
        body += [f"<h2>Lesson {number}: what failed most, and why</h2>", *_most(of_lesson)]
        body += [f"<h2>Lesson {number}: everybody</h2>", _everybody(of_lesson)]
    body.append(_problems(grades))
    return _page("Grades", "\n".join(body))


def _most(grades: list[Grade]) -> list[str]:
    """A bar and the commonest misconceptions for each exercise, the worst first."""
    by_name: dict[str, list[Result]] = {}
    for grade in grades:
        for result in [] if grade.problem else grade.results:
            by_name.setdefault(result.name, []).append(result)
    order = sorted(by_name.values(), key=lambda results: -sum(r.state == FAILED for r in results))
    return [_bar(results) for results in order]


def _bar(results: list[Result]) -> str:
    counts = Counter(result.state for result in results)
    parts = "".join(
        f'<i class="{state.replace(" ", "-")}" style="flex:{counts[state]}"></i>' for state in MARKS if counts[state]
    )
    words = ", ".join(f"{counts[state]} {state}" for state in MARKS if counts[state])
    why = Counter(_flowing(result.why or _in_short(result)) for result in results if result.state == FAILED)
    reasons = "".join(f"<li><b>{count}×</b> {escape(text)}</li>" for text, count in why.most_common(OFTEN))
    title = escape(results[0].title or results[0].name)
    return f'<div class="bar"><h3>{title}</h3><p>{words}</p><div class="stack">{parts}</div><ul>{reasons}</ul></div>'


def _in_short(result: Result) -> str:
    """Why it failed where no misconception was recognised: the first axis that failed, else the last line said.

    Without sizes and ranks, which are others for each student: what is alike counts together.
    """
    failed = [f"{axis['axis']}: {_alike(_flowing(axis['text']))}" for axis in result.axes if axis["state"] == FAILED]
    lines = [line for line in result.feedback.splitlines() if line.strip()]
    return shorten((failed or lines[-1:] or ["no feedback"])[0], 160, placeholder=" ...")


def _alike(text: str) -> str:
    return CASE.sub("", text).partition(";")[0].strip()


def _everybody(grades: list[Grade]) -> str:
    names = list(dict.fromkeys(result.name for grade in grades for result in grade.results))
    head = "".join(f'<th class="turned"><span>{escape(name)}</span></th>' for name in names)
    rows = []
    for grade in sorted(grades, key=lambda one: one.student):
        states = {result.name: result for result in grade.results}
        marks = "".join(_mark(states.get(name), bool(grade.problem)) for name in names)
        link = f'<a href="students/{file_name(grade)}">{escape(grade.student)}</a>'
        rows.append(f'<tr><th class="name">{link}</th>{marks}<td><b>{_number(grade.points)}</b></td></tr>')
    legend = ", ".join(f"{mark} {WORDS[state]}" for state, mark in MARKS.items())
    points = '<th class="turned"><span><b>points</b></span></th>'
    table = f"<table><tr><th></th>{head}{points}</tr>{''.join(rows)}</table>"
    return f'<p class="sub">{legend}, ! not graded</p><div class="wide">{table}</div>'


def _mark(result: Result | None, unread: bool) -> str:
    if result is None or unread:
        return f"<td>{'!' if unread else ''}</td>"
    return f'<td class="{result.state.replace(" ", "-")}">{MARKS[result.state]}</td>'


def _problems(grades: list[Grade]) -> str:
    """Submissions that a teacher should look at: not graded, or with remarks."""
    found = [(grade, [f"Not graded: {grade.problem}."] if grade.problem else grade.notes) for grade in grades]
    found += [(grade, [f"The grader failed: {grade.fault[:300]}"]) for grade in grades if grade.fault]
    items = "".join(
        f'<li><a href="students/{file_name(grade)}">{escape(grade.student)}</a> ({escape(grade.source)}): '
        f"{escape(' '.join(texts))}</li>"
        for grade, texts in found
        if texts
    )
    return f"<h2>To look at</h2><ul>{items}</ul>" if items else ""
