"""Which cells answer what, and what is run of them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests import grade_cases as cases
from tests.grade_thirty import NAMES, deleted, duplicated, edited_checks, reordered, rewritten_stdout
from tpcourse.grade import grader, match, official, reading, rebuild, run

LESSONS = official.lessons(cases.ROOT)
LESSON = LESSONS["05"]
BYTES = cases.to_bytes(cases.solved(*NAMES))


def matched(made):
    return match.match(LESSON, reading.read_cells(cases.to_bytes(made)))


def graded_cells(made):
    return json.loads(rebuild.notebook(LESSON, matched(made)))["cells"]


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
        "import builtins\nbuiltins.print = id\ndef column_product(): 0",
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
    "text",
    [
        "%%px\nimport tpcourse.check.lesson05.column_product as official\ndef column_product(): 0",
        "%%px\nfrom tpcourse import wire, check\ndef column_product(): 0",
        "%%px\ndef column_product():\n    from tpcourse.check import lesson05",
        "%%px\nimport tpcourse . grade\ndef column_product(): 0",
    ],
)
def test_an_answer_that_looks_into_the_check_is_not_run(text):
    made = cases.with_answers(column_product=text)
    assert cases.source(graded_cells(made)[LESSON.exercises[0].answer]) == rebuild.NOTHING
    assert "the part of the course that checks it" in rebuild.refusal(LESSON.exercises[0], text)


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


def test_an_answer_that_looks_around_in_whoever_calls_it_is_not_run():
    text = '%%px\nimport sys\ndef column_product(*args):\n    return sys._getframe(1).f_locals["right"]'
    assert "the part of the course that checks it" in rebuild.refusal(LESSON.exercises[0], text)


def test_a_cell_that_is_too_long_to_be_run_is_not_read_either():
    assert match.defines("def f(): pass\n") == {"f"} and match.defines("x;" * reading.LONGEST) == set()


def test_a_grade_that_cannot_be_kept_is_a_fault_and_stops_no_other(tmp_path, monkeypatch):
    made = run.Grade("anna", "05", "a_05.ipynb", "", [], notes=["\ud800"])
    monkeypatch.setattr(grader, "grade", lambda *args: made)
    (tmp_path / "rows").mkdir()
    one = grader.Grader(tmp_path, {}, tmp_path, grader.Settings())
    assert "surrogates" in one._one(SimpleNamespace(), "0" * 64, SimpleNamespace()).fault
