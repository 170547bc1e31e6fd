"""What earns a point, and what is written down of it."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import xml.etree.ElementTree as xml

import numpy as np
import pytest

from tests import grade_cases as cases
from tests.grade_thirty import ALL, NAMES
from tpcourse.check.evidence import Outcome
from tpcourse.grade import official, pages, plain, rebuild, run, store, verdict
from tpcourse.ledger.board import Board
from tpcourse.ranks.server import Session

LESSONS = official.lessons(cases.ROOT)
LESSON = LESSONS["05"]


def test_an_unpickler_of_plain_data_reads_outcomes_and_refuses_code():
    outcome = Outcome(result=[np.arange(6.0).reshape(2, 3), np.float64(2), None], facts={"held": {1, 2}})
    again = plain.loads(pickle.dumps(outcome))
    assert np.array_equal(again.result[0], outcome.result[0]) and again.facts == outcome.facts

    for call in (os.system, exec, getattr, __import__, rebuild.notebook, run.Runs, Board, Session):

        class Evil:
            def __reduce__(self, call=call):
                return call, ("x",)

        with pytest.raises(pickle.UnpicklingError, match="no plain data"):
            plain.loads(pickle.dumps(Evil()))


def note(cell, outcome="passed", **more):
    return {
        "cell": cell,
        "outcome": outcome,
        "ename": "",
        "evalue": "",
        "stdout": "",
        "message": "",
        "lost": "",
        **more,
    }


def said(exercise, state="passed", **more):
    lines = [{"axis": "values", "state": state, "text": ""}]
    found = {
        "cell": exercise.check,
        "title": exercise.name,
        "state": state,
        "lines": lines,
        "text": f"{exercise.name}: {state}",
    }
    return {**found, "why": "", "hint": "", "figures": [], **more}


FIRST = LESSON.exercises[0]


@pytest.mark.parametrize(
    ("cells", "verdicts"),
    [
        ([], []),
        ([note(FIRST.check)], []),
        ([], [said(FIRST)]),
        ([note(FIRST.check, "failed")], [said(FIRST)]),
        ([note(FIRST.check)], [said(FIRST, title="row_product")]),
        ([note(FIRST.check)], [said(FIRST, cell=FIRST.check + 1)]),
        ([note(FIRST.check)], [said(FIRST, "failed")]),
        ([note(FIRST.check)], [said(FIRST, "a new state")]),
        ([note(FIRST.check)], [said(FIRST), {"cell": FIRST.check, "late": True, "renewed": False}]),
        ([note(FIRST.check, lost="not run: cell 2")], [said(FIRST)]),
    ],
    ids=[
        "nothing",
        "no verdict",
        "no cell",
        "nbval failed",
        "other title",
        "other cell",
        "failed",
        "unknown",
        "late",
        "lost",
    ],
)
def test_one_witness_alone_earns_no_point(cells, verdicts):
    report = {"ended": "done", "cells": cells, "verdicts": verdicts}
    result = verdict.settle(FIRST, report, {one["cell"]: one for one in cells})
    assert (result.state, result.points) == ("failed", 0) and result.feedback


def test_all_witnesses_together_earn_the_points():
    cells = {FIRST.answer: note(FIRST.answer), FIRST.check: note(FIRST.check)}
    result = verdict.settle(FIRST, {"ended": "done", "verdicts": [said(FIRST)]}, cells)
    assert (result.state, result.points) == ("passed", 2)


def test_a_check_that_no_axis_of_could_be_judged_here_is_blocked():
    cells = {FIRST.check: note(FIRST.check, "failed")}
    blocked = said(FIRST, "failed", lines=[{"axis": "hidden time", "state": "blocked", "text": ""}])
    assert verdict.settle(FIRST, {"ended": "done", "verdicts": [blocked]}, cells).state == "blocked"


def some_grade(student="=cmd()", **more):
    results = [verdict.Result(name, f"{name} <b>", 2, state, 2 * (state == "passed"), "text <script>", "why & why")
               for name, state in zip(NAMES, ["passed", "failed", "not started"], strict=False)]  # fmt: skip
    return run.Grade(student, "05", "a_05.ipynb", "0" * 64, results, **more)


def test_tables_have_a_row_a_student_and_zero_is_a_number(tmp_path):
    grades = [some_grade(), some_grade("anna", problem="it is empty")]
    store.write_tables(tmp_path, grades)
    rows = list(csv.reader(io.StringIO((tmp_path / "grades.csv").read_text("utf-8-sig"))))
    assert rows[0] == ["student", *NAMES[:3], "points", "possible", "remarks"]
    assert rows[1] == ["'=cmd()", "2", "0", "0", "2", "6", ""] and rows[2][-1] == "it is empty"
    made = json.loads((tmp_path / "grades.json").read_text())
    assert made["submissions"][0]["points"] == 2 and made["versions"]["torch"]
    suite = xml.parse(tmp_path / "grades.xml").getroot()[0]
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["3", "1", "1"]


def test_a_grade_is_found_again_only_for_the_same_file_and_only_if_it_is_whole(tmp_path):
    (tmp_path / "rows").mkdir()
    made = some_grade()
    store.save(tmp_path, made)
    assert store.load(tmp_path, made.digest) == made
    path = tmp_path / "rows" / f"{made.digest}.json"
    path.write_bytes(path.read_bytes()[:-40])
    assert store.load(tmp_path, made.digest) is None and store.load(tmp_path, "1" * 64) is None


def test_pages_show_the_misconception_and_nothing_of_a_student_as_html(tmp_path):
    grades = [some_grade("<script>x</script>"), some_grade("<script>x", problem="it is <empty>")]
    pages.write_pages(tmp_path, grades, LESSONS)
    texts = [path.read_text() for path in tmp_path.rglob("*.html")]
    assert len(texts) == 3 and all("<script" not in text for text in texts)
    assert any("why &amp; why" in text for text in texts)
    assert "1×</b> why &amp; why" in (tmp_path / "index.html").read_text()


def test_failures_that_differ_in_sizes_alone_count_together_on_the_page_of_the_class(tmp_path):
    grades = []
    for number in (3, 4):
        text = f"at {number} ranks, B = {number}, F = 9 it did not end; in ranks of the world: rank {number} waits"
        axes = [{"axis": "values", "state": "failed", "text": text}]
        grades.append(some_grade(f"student {number}"))
        grades[-1].results[0] = verdict.Result(NAMES[0], "Columns", 2, axes=axes)
    pages.write_pages(tmp_path, grades, LESSONS)
    assert "2×</b> values: it did not end</li>" in (tmp_path / "index.html").read_text()


def test_points_of_the_lesson_are_those_of_its_check_cells():
    assert sum(exercise.points for exercise in LESSON.exercises) == ALL
