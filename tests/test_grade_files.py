"""Grading before anything runs: which files count, which cells answer what, what is run, and what is written down."""

from __future__ import annotations

import csv
import io
import json
import os
import xml.etree.ElementTree as xml
import zipfile

import pytest

from tests import grade_cases as cases
from tests.grade_thirty import ALL, NAMES, deleted, duplicated, edited_checks, reordered, rewritten_stdout
from tpcourse.grade import match, official, pages, plain, reading, rebuild, run, store, verdict
from tpcourse.grade.find import MOST_BYTES, find, whose

LESSONS = official.lessons(cases.ROOT)
LESSON = LESSONS["05"]
BYTES = cases.to_bytes(cases.solved(*NAMES))


def matched(made):
    return match.match(LESSON, reading.read_cells(cases.to_bytes(made)))


def graded_cells(made):
    return json.loads(rebuild.notebook(LESSON, matched(made)))["cells"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("anna/05_columns_and_rows.ipynb", ("anna", "05")),
        ("anna/work/05.ipynb", ("anna", "05")),
        ("anna_05.ipynb", ("anna", "05")),
        ("anna_maria_05_columns_and_rows.ipynb", ("anna_maria", "05")),
        ("anna_05_columns_and_rows (1).ipynb", ("anna", "05")),
        ("smithanna_1234_5678_05_columns_and_rows.ipynb", ("smithanna_1234_5678", "05")),
        ("Anna Smith_1234_assignsubmission_file/05_columns_and_rows.ipynb", ("Anna Smith", "05")),
        ('O\'Brien "Bo"_05.ipynb', ('O\'Brien "Bo"', "05")),
        ("anna/answers.ipynb", ("anna", "")),
        ("answers.ipynb", ("answers", "")),
    ],
)
def test_student_and_lesson_are_read_off_the_path(path, expected):
    assert whose(tuple(path.split("/"))) == expected


def test_folders_files_and_zips_are_found_and_hidden_ones_are_not(tmp_path):
    (tmp_path / "anna" / ".ipynb_checkpoints").mkdir(parents=True)
    (tmp_path / "anna" / "05.ipynb").write_bytes(BYTES)
    (tmp_path / "anna" / ".ipynb_checkpoints" / "05-checkpoint.ipynb").write_bytes(BYTES)
    (tmp_path / "ben_05.ipynb").write_bytes(BYTES)
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as archive:
        archive.writestr("Cleo_1_assignsubmission_file/05.ipynb", BYTES)
        archive.writestr("__MACOSX/Cleo/._05.ipynb", b"x")
    found = [(one.student, one.lesson, one.problem, one.data == BYTES) for one in find(tmp_path)]
    assert found == [("Cleo", "05", "", True), ("anna", "05", "", True), ("ben", "05", "", True)]
    assert [one.student for one in find(tmp_path / "class.zip")] == ["Cleo"]


def test_links_pipes_and_names_that_climb_are_told_and_never_read(tmp_path):
    place = tmp_path / "in"
    place.mkdir()
    (tmp_path / "secret_05.ipynb").write_bytes(BYTES)
    os.symlink(tmp_path / "secret_05.ipynb", place / "link_05.ipynb")
    os.symlink(tmp_path, place / "folder")
    os.mkfifo(place / "pipe_05.ipynb")
    with zipfile.ZipFile(place / "z.zip", "w") as archive:
        archive.writestr("../../climbs_05.ipynb", BYTES)
        linked = zipfile.ZipInfo("linked_05.ipynb")
        linked.external_attr = 0o120777 << 16
        archive.writestr(linked, "/etc/passwd")
    found = {one.student: one for one in find(place)}
    assert set(found) == {"link", "pipe", "climbs", "linked"}
    assert all(one.problem and not one.data for one in found.values())
    assert "link" in found["link"].problem and "link" in found["linked"].problem and "out of" in found["climbs"].problem


def test_files_that_are_too_large_or_broken_are_told(tmp_path):
    with (tmp_path / "large_05.ipynb").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 no zip")
    (tmp_path / os.fsdecode(b"caf\xe9_05.ipynb")).write_bytes(BYTES)
    found = {one.student: one for one in find(tmp_path)}
    assert "clear its outputs" in found["large"].problem and "zip cannot be read" in found["broken"].problem
    assert found["caf\ufffd"].data == BYTES


def test_the_newest_of_several_notebooks_counts_and_the_others_are_named(tmp_path):
    (tmp_path / "anna").mkdir()
    for name, when in (("05.ipynb", 1_000), ("05 (1).ipynb", 2_000)):
        (tmp_path / "anna" / name).write_bytes(BYTES)
        os.utime(tmp_path / "anna" / name, (when, when))
    (one,) = find(tmp_path)
    assert one.name == "anna/05 (1).ipynb" and "not anna/05.ipynb" in one.notes[0]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf \r\n", "the file is empty"),
        (b'{"cells": [\n', "wrong in line 2"),
        (b"[" * 100_000, "cannot be read"),
        (b"[1, 2]", "JSON and no notebook"),
        (b'{"cells": 3}', "no cells"),
        (b'{"nbformat": 4}', "no cells"),
        (bytes(range(256)), "is no notebook"),
    ],
)
def test_what_is_no_notebook_is_said_in_a_sentence(data, sentence):
    with pytest.raises(reading.Unreadable, match=sentence):
        reading.read_cells(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"cells": [null, 3, {"cell_type": "code"}, {"cell_type": [], "source": {"a": 1}, "metadata": 7}]}',
        b'{"cells": [{"cell_type": "code", "source": ["a", null, 3], "metadata": {"nbgrader": []}}]}',
        b'{"worksheets": [null, {}, {"cells": null}, {"cells": [{"input": "x"}]}]}',
        b'{"cells": [{"cell_type": "code", "source": "\\ud800", "id": {"a": []}}]}',
    ],
)
def test_odd_cells_are_read_or_left_out_and_never_raise(data):
    for cell in reading.read_cells(data).cells:
        cell.source.encode()


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made, cases.renamed_ids, cases.old_format, duplicated, reordered, rewritten_stdout,
    ],
    ids=["as it is", "ids rewritten", "format 3", "duplicated", "reordered", "outputs pasted"],
)  # fmt: skip
def test_every_answer_is_found_whatever_an_editor_did(change):
    found = matched(change(cases.solved(*NAMES)))
    assert found.answers == {name: cases.solution(name) for name in NAMES}


@pytest.mark.parametrize("encode", [lambda t: t.replace("\\n", "\\r\\n").encode(), lambda t: t.encode("utf-16")])
def test_windows_line_ends_and_encodings_change_no_answer(encode):
    found = match.match(LESSON, reading.read_cells(encode(BYTES.decode())))
    assert found.answers == {name: cases.solution(name) for name in NAMES}


def test_what_was_done_to_cells_is_told_in_words():
    assert "no answer cell for row_product." in " ".join(matched(deleted(cases.solved(*NAMES), "row_product")).notes)
    assert "There more than once" in " ".join(matched(duplicated(cases.solved(*NAMES))).notes)
    assert "another order" in " ".join(matched(reordered(cases.solved(*NAMES))).notes)
    assert "was edited" in " ".join(matched(edited_checks(cases.book())).notes)
    (note,) = matched(cases.renamed_ids(cases.solved(*NAMES))).notes
    assert "found by the function that it defines: column_product, row_product" in note
    assert matched(cases.solved(*NAMES)).notes == []


def test_an_answer_that_was_split_is_joined():
    made = cases.solved(*NAMES)
    at = made["cells"].index(cases.cell_of(made, "column_product"))
    whole = cases.source(made["cells"][at])
    head, tail = whole.split("\n\n\ndef ")
    parts = [{**made["cells"][at], "source": text} for text in (head, "%%px\ndef " + tail)]
    made["cells"][at : at + 1] = parts
    found = matched(made)
    assert "Split over several cells" in " ".join(found.notes)
    assert "class Copy" in found.answers["column_product"] and "%%px" not in found.answers["column_product"][5:]


def test_the_notebook_that_is_run_has_nothing_of_the_student_but_text_for_ranks():
    made = rewritten_stdout(edited_checks(cases.solved(*NAMES)))
    made["cells"].insert(0, {**made["cells"][2], "source": "EXTRA = 1"})
    official_cells = [cell.source for cell in LESSON.cells]
    for place, cell in enumerate(graded_cells(made)):
        text = cases.source(cell)
        if place in {exercise.answer for exercise in LESSON.exercises}:
            assert text.startswith("%%px\n")
        else:
            assert text == official_cells[place]


@pytest.mark.parametrize(
    "text",
    [
        "import tpcourse.check\ntpcourse.check.exercise = print\ndef column_product(): 0",
        "%%px {open('x', 'w')}\ndef column_product(): 0",
        "%%px --targets {1}\ndef column_product(): 0",
        "%%px $x\ndef column_product(): 0",
        "%%time\n%%px\ndef column_product(): 0",
        "# comment\n%%px\ndef column_product(): 0",
        "%%px\x0b!touch x\ndef column_product(): 0",
        "%%px\u2028!touch x\ndef column_product(): 0",
    ],
)
def test_an_answer_that_would_reach_the_kernel_is_not_run(text):
    made = cases.with_answers(column_product=text)
    place = LESSON.exercises[0].answer
    assert cases.source(graded_cells(made)[place]) == rebuild.NOTHING
    assert "does not begin with %%px" in rebuild.refusal(LESSON.exercises[0], text)


@pytest.mark.parametrize(
    "marker",
    ["# NBVAL_SKIP", "#NBVAL_IGNORE_OUTPUT", "  ## NBVAL_RAISES_EXCEPTION ", "# PYTEST_VALIDATE_IGNORE_OUTPUT"],
)
def test_nbval_s_own_markers_in_an_answer_mean_nothing(marker):
    from nbval.plugin import find_comment_markers

    cell = graded_cells(cases.with_answers(column_product=f"%%px\n{marker}\ndef column_product(): 0"))[2]
    assert list(find_comment_markers(cases.source(cell))) == []


def test_answers_of_the_notebook_itself_go_to_a_rank_with_what_they_import():
    lesson = LESSONS["02"]
    found = match.match(lesson, reading.read_cells((cases.ROOT / "solutions" / "02_cost.ipynb").read_bytes()))
    cells = json.loads(rebuild.notebook(lesson, found))["cells"]
    assert all(
        cases.source(cells[one.answer]).startswith("%%px --targets 0\nfrom tpcourse import") for one in lesson.exercises
    )


def test_check_cells_carry_the_official_output_and_settled_ones_are_left_out():
    found = matched(cases.solved(*NAMES))
    cells = json.loads(rebuild.notebook(LESSON, found, settled=["row_product"], broken=["column_product"]))["cells"]
    first, second, third = LESSON.exercises[:3]
    assert cells[first.check]["outputs"] and cases.source(cells[first.answer]) == rebuild.NOTHING
    assert cases.source(cells[second.check]) == rebuild.NOTHING and not cells[second.check]["outputs"]
    assert cells[third.check]["execution_count"] == 1


def test_another_lesson_s_file_is_recognised():
    cells = reading.read_cells((cases.ROOT / "solutions" / "04_data_parallel.ipynb").read_bytes())
    named = type("S", (), {"lesson": "05"})
    unnamed = type("S", (), {"lesson": ""})
    assert run.lesson_of(named, cells, LESSONS) == (
        LESSON,
        "it is the notebook of lesson 04, handed in under the name of lesson 05",
    )
    assert run.lesson_of(unnamed, cells, LESSONS) == (LESSONS["04"], "")


def test_an_unpickler_of_plain_data_reads_outcomes_and_refuses_code():
    import pickle

    import numpy as np

    from tpcourse.check.evidence import Outcome
    from tpcourse.ledger.board import Board
    from tpcourse.ranks.server import Session

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


def test_points_of_the_lesson_are_those_of_its_check_cells():
    assert sum(exercise.points for exercise in LESSON.exercises) == ALL
