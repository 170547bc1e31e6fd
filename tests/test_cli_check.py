"""`tpcourse check`: every check of a notebook is run, each state is told, and progress is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from tests import grade_cases as cases
from tpcourse import progress
from tpcourse.cli import check


def cell(text="", name="stdout"):
    return SimpleNamespace(outputs=[{"name": name, "text": text}] if text else [])


@pytest.mark.parametrize(
    ("text", "failure", "state"),
    [
        ("a: passed\n  values ✓\n", None, "passed"),
        ("", None, "failed"),
        ("passed\n", None, "failed"),
        ("b: passed\n", None, "failed"),
        ("", "CheckFailed: a: failed\n    values ✗", "failed"),
        ("", "CheckFailed: a: not started", "not started"),
        ("", "CheckFailed: a: blocked", "blocked"),
        ("a: passed\n", "The notebook's kernel died in this cell.", "failed"),
        ("", "CheckFailed: a: passed", "failed"),
        ("", "NameError: name 'ranks' is not defined", "failed"),
    ],
)
def test_a_state_is_what_the_check_said_and_failed_where_it_said_nothing(text, failure, state):
    one = check.Checked("a", 2, [])
    check.settle(one, cell(text), failure)
    assert one.state == state and one.text.startswith(f"a: {state}" if state != "failed" else "a: ")


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("course")
    for folder in ("notebooks/src", "exercises", "tpcourse"):
        (root / folder).mkdir(parents=True)
    for name in (f"{cases.STEM}.ipynb", "04_data_parallel.ipynb"):
        shutil.copy(cases.ROOT / "exercises" / name, root / "exercises" / name)
    return root


def run(course: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tpcourse", "check", *args]
    env = os.environ | {"PYTHONPATH": str(cases.ROOT)}
    return subprocess.run(command, cwd=course, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_a_notebook_is_checked_to_its_end_and_progress_is_kept(course: Path) -> None:
    made = cases.solved("gradient_norm", column_product=cases.wrong("column_product__averaged"))
    path = course / "exercises" / f"{cases.STEM}.ipynb"
    path.write_bytes(cases.to_bytes(made))
    done = run(course, "05")
    assert done.returncode == 1, done.stderr
    assert "dx is p times too small" in done.stdout and "gradient_norm: passed" in done.stdout
    assert "  05  1 of 7  ✗ · · · · ✓ ·" in done.stdout and "  04  0 of 5" in done.stdout
    assert path.read_bytes() == cases.to_bytes(made)
    kept = json.loads((course / progress.FILE).read_text())["states"]["05"]
    assert (kept["column_product"], kept["gradient_norm"], kept["row_product"]) == ("failed", "passed", "not started")
    assert "  05  1 of 7  ✗ · · · · ✓ ·" in run(course).stdout


ENDS_A_RANK = """%%px
import os

def ring_all_gather(shard, group):
    os._exit(3)
"""


def test_an_answer_that_ends_its_rank_or_is_no_python_takes_only_its_own_check_with_it(tmp_path: Path) -> None:
    for folder in ("notebooks/src", "exercises", "tpcourse"):
        (tmp_path / folder).mkdir(parents=True)
    book = nbformat.read(cases.ROOT / "solutions" / "01_collectives.ipynb", as_version=4)
    for one in book.cells:
        if one.metadata.get("nbgrader", {}).get("grade_id") == "ring_all_gather":
            one.source = ENDS_A_RANK + "\nfrom tpcourse.wire import exchange\n"
        if one.metadata.get("nbgrader", {}).get("grade_id") == "tree_broadcast":
            one.source = "%%px\ndef tree_broadcast(x, root, group)\n    return x"
    nbformat.write(book, tmp_path / "exercises" / "01_collectives.ipynb")
    told = run(tmp_path, "01").stdout
    assert "  01  4 of 6  ✗ ✓ ✓ ✗ ✓ ✓" in told
    assert "died" in told and "Connection" not in told
    assert "A cell above this check ended with an error." in told and "expected ':'" in told


def test_a_cell_that_ended_the_notebook_is_told_once_for_each_check_after_it():
    lost = "The notebook's kernel died in this cell."
    checks = check.Checks(cases.ROOT / "exercises" / "01_collectives.ipynb", 10)
    checks.client.setup_kernel = lambda **options: nullcontext()
    checks.fails = lambda cell, index: lost
    checks.execute()
    assert all(one.text.count("Not run") <= 1 and lost in one.text for one in checks.found)
    assert sum("Not run" in one.text for one in checks.found) == len(checks.found)


def test_what_is_no_lesson_is_said_and_broken_progress_is_none(course: Path) -> None:
    assert "is no lesson" in run(course, "five").stderr
    assert "there is no lesson '09'" in run(course, "09").stderr
    (course / progress.FILE).write_text("[1]")
    assert progress.load(course) == progress.Progress()


def test_hints_come_one_after_the_other_and_those_used_are_kept_and_said(course: Path) -> None:
    said = [run(course, "05", "--hint", "row_product").stdout for _ in range(4)]
    assert [text.splitlines()[0] for text in said] == [f"row_product, hint {n} of 3" for n in (1, 2, 3, 3)]
    assert "Write y with its sum over ranks" in said[0] and "total = partial.clone()" in said[3]
    assert progress.load(course).hints == {"row_product": 3}
    one = check.Checked("row_product", 2, ["a", "b", "c"])
    assert check.hints_used(one, progress.load(course)) == "\n  hints used     3 of 3"
    assert "no exercise here is called 'rows'; there are column_product" in run(course, "05", "--hint", "rows").stderr


def test_the_progress_of_a_course_has_every_exercise_in_its_order(course: Path) -> None:
    progress.save(course, progress.Progress({"05": {"row_product": "passed", "gone": "failed"}}))
    found = progress.progress(course / "notebooks")
    assert list(found) == ["04", "05"] and list(found["05"])[:2] == ["column_product", "row_product"]
    assert found["05"]["row_product"] == "passed" and set(found["04"].values()) == {"not started"}
    assert progress.progress(course.parent) == {}
