"""Sources and runs that must not become a notebook: each is refused with the file, the cell and the reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.tiny_course import LESSON, SOLUTION, write
from tpcourse.authoring import AuthoringError, build
from tpcourse.authoring.outputs import WIDGET, clean
from tpcourse.authoring.run import environment

ANSWER = '# %% nbgrader={"grade_id": "add", "solution": true}'
CHECK = '# %% nbgrader={"grade_id": "add_check", "grade": true, "points": 2} tags=["check"]'


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("    ### END SOLUTION\n", "", "BEGIN SOLUTION has no ### END SOLUTION"),
        ("    ### BEGIN SOLUTION\n", "", "END SOLUTION without ### BEGIN SOLUTION"),
        ("    ### END SOLUTION", "    ### BEGIN HIDDEN TESTS", "BEGIN HIDDEN TESTS before ### END SOLUTION"),
        ("### BEGIN HIDDEN", "    ### BEGIN SOLUTION\n    ### END SOLUTION\n### BEGIN HIDDEN", "but not nbgrader="),
        ("### END HIDDEN TESTS\n", "", "BEGIN HIDDEN TESTS has no ### END"),
        ("    ### BEGIN SOLUTION", "    ###BEGIN SOLUTION", "no marker"),
        ("    ### BEGIN SOLUTION", "    ### BEGIN ANSWER", "no marker"),
        ("    ### BEGIN SOLUTION\n    total", "    total", "without ### BEGIN"),
        (ANSWER, "# %%", "but not nbgrader="),
        ("add_check", "add", "grade_id 'add' is used by an earlier cell"),
        ('"points": 2', '"points": -1', "needs points of 0 or more, not -1"),
        (', "points": 2', "", "needs points of 0 or more, not None"),
        ('"add"', '"a d d"', "must be letters, digits"),
        ('"solution": true', '"solution": true, "colour": 1', "does not know colour"),
        ('"solution": true', '"solution": true, "locked": true', "an answer cell cannot be locked"),
        ('"grade": true', '"grade": true, "locked": false', "a check cell must be locked"),
        ('"grade": true', '"grade": true, "schema_version": 2', "schema_version is 2, not 3"),
        ('"grade": true', '"grade": 1', "grade is 1, not true or false"),
        (CHECK, "# %%", "BEGIN HIDDEN TESTS outside a check cell"),
        (SOLUTION[SOLUTION.index(CHECK) :], "", "an answer cell without a check cell"),
        (ANSWER, CHECK.replace("add_check", "early") + "\n\n" + ANSWER, "a check cell without an answer cell"),
        ('tags=["check"]', 'tagz=["check"]', "unknown key tagz"),
        ('tags=["check"]', 'tags=["raise-exception"]', "raise-exception is mistyped"),
    ],
)
def test_a_faulty_solution_is_refused_with_file_cell_and_reason(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    assert old in SOLUTION
    write(tmp_path, LESSON)
    write(tmp_path, SOLUTION.replace(old, new, 1), "solutions")
    results = build(tmp_path, check=True, execute=False, style=False)
    assert results[2].state == "failed"
    assert results[2].path == "exercises/01_adding.ipynb"
    assert results[2].problems[0].startswith("01_adding.py: cell ")
    assert sentence in results[2].problems[0]


def test_tags_that_are_no_list_are_refused(tmp_path: Path) -> None:
    write(tmp_path, lesson("1", ' tags="check"'))
    results = build(tmp_path, execute=False)
    assert results[0].problems == ["01_adding.py: not in percent format: 'check' is not of type 'array'"]


def lesson(code: str, tags: str = "") -> str:
    return f"# %% [markdown]\n# text\n\n# %%{tags}\n{code}\n"


@pytest.mark.parametrize(
    ("code", "tags", "sentences"),
    [
        ("secret = 1\nsecret / 0", "", ["cell 2 (code, `secret = 1`) raised", "    secret / 0", "ZeroDivisionError"]),
        ("%%nosuch\n1", "", ["raised", "nosuch"]),
        ("import os\nos._exit(3)", "", ["ran while its kernel ended", "    os._exit(3)"]),
        ("import time\ntime.sleep(60)", "", ["took longer than 2 s", "    time.sleep(60)"]),
        ("1", ' tags=["raises-exception"]', ["is tagged raises-exception, raised nothing"]),
        ("from pathlib import Path\nPath.cwd()", "", ["an absolute path"]),
    ],
)
def test_a_cell_that_fails_stops_the_build_with_its_source_and_nothing_is_written(
    tmp_path: Path, code: str, tags: str, sentences: list[str]
) -> None:
    write(tmp_path, lesson(code, tags))
    results = build(tmp_path, style=False, cell_limit_s=2 if "sleep" in code else 60)
    assert results[0].state == "failed"
    for sentence in sentences:
        assert sentence in results[0].problems[0]
    assert not list(tmp_path.rglob("*.ipynb"))


def shown(**output: Any) -> Any:
    kind = "display_data" if "data" in output else "stream"
    output = output if "data" in output else {"name": "stdout", **output}
    return new_notebook(cells=[new_code_cell("run()", outputs=[new_output(kind, **output)])])


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ({"text": "Starting 4 engines with <class 'x'>\n"}, "a log line of the engines"),
        ({"text": "2026-01-01 [IPController] client::x\n"}, "a log line of the engines"),
        ({"text": "zmq.error.ZMQError: Address in use\n"}, "a message of ZMQ"),
        ({"text": " 40%|####      | 2/5\n"}, "a progress bar"),
        ({"text": "1\r2\r3\n"}, "a progress bar"),
        ({"text": "saved to /tmp/tmpab12/x\n"}, "an absolute path"),
        ({"text": "see /home/ada/course/x.py\n"}, "an absolute path"),
        ({"text": f"in {Path(__file__).parents[1]}\n"}, "an absolute path"),
        ({"text": "<function f at 0x7f00deadbeef>\n"}, "a memory address"),
        ({"name": "stderr", "text": "FutureWarning: old\n"}, "text on stderr"),
        ({"data": {"text/html": "<b>/home/ada/x</b>"}}, "an absolute path"),
        ({"data": {WIDGET: {}, "text/plain": "x"}}, "without a static picture"),
        ({"data": {WIDGET: {}, "image/png": "", "text/plain": "HBox(children=())"}}, "the repr of a widget"),
    ],
)
def test_noise_in_an_output_fails_the_build_with_a_sentence(output: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AuthoringError, match=sentence) as raised:
        clean(shown(**output), "01_x.py")
    assert str(raised.value).startswith("01_x.py: cell 1 (code, `run()`): its output holds ")


@pytest.mark.parametrize("text", ["1/2 and 3/4, 50 % of tmp/x, 0x10\n", "line 4 of cell 7: ranks 0-3 / 4\n"])
def test_plain_text_is_no_noise(text: str) -> None:
    clean(shown(text=text), "01_x.py")


def test_pieces_of_a_stream_become_one_whatever_their_order() -> None:
    pieces = [("stdout", "a"), ("stderr", "x"), ("stdout", "b"), ("stderr", "y")]
    notebook = new_notebook(
        cells=[
            new_code_cell(
                "run()",
                metadata={"tags": ["allow-stderr"]},
                outputs=[new_output("stream", name=name, text=text) for name, text in pieces],
            )
        ]
    )
    clean(notebook, "01_x.py")
    assert [(out.name, out.text) for out in notebook.cells[0].outputs] == [("stdout", "ab"), ("stderr", "xy")]


def test_a_widget_beside_a_picture_is_saved_as_its_sentence_and_the_picture() -> None:
    notebook = shown(data={WIDGET: {"model_id": "x"}, "text/plain": "Run this cell for the controls."})
    notebook.cells[0].outputs.append(new_output("display_data", data={"image/png": "cGljdHVyZQ=="}))
    clean(notebook, "01_x.py")
    kinds = [dict(output.data) for output in notebook.cells[0].outputs]
    assert kinds == [{"text/plain": "Run this cell for the controls."}, {"image/png": "cGljdHVyZQ=="}]


def test_a_notebook_that_succeeds_is_not_written_when_another_fails(tmp_path: Path) -> None:
    write(tmp_path, lesson("3"))
    write(tmp_path, lesson("1 / 0"), name="02_fails")
    first, second = build(tmp_path, style=False)
    assert (first.problems, second.state) == (["not written: another one failed"], "failed")
    assert not list(tmp_path.rglob("*.ipynb"))


def test_the_environment_of_a_build_does_not_outlive_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPCOURSE_LIVE", "1")
    monkeypatch.delenv("TPCOURSE_BACKEND", raising=False)
    with environment(TPCOURSE_LIVE="0", TPCOURSE_BACKEND="gloo"):
        assert (os.environ["TPCOURSE_LIVE"], os.environ["TPCOURSE_BACKEND"]) == ("0", "gloo")
    assert os.environ["TPCOURSE_LIVE"] == "1"
    assert "TPCOURSE_BACKEND" not in os.environ
