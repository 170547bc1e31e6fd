"""A tiny course, built: same source, same bytes; what is stale or wrong is named."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.tiny_course import LESSON, SOLUTION, write
from tpcourse.authoring import build, main
from tpcourse.authoring.notebook import to_bytes
from tpcourse.authoring.outputs import strip_png
from tpcourse.authoring.source import read_source


@pytest.fixture
def course(tmp_path: Path) -> Path:
    write(tmp_path, LESSON)
    write(tmp_path, SOLUTION, "solutions")
    return tmp_path


def saved(root: Path, folder: str = "notebooks") -> Any:
    return nbformat.read(root / folder / "01_adding.ipynb", as_version=4)


def states(results: list[Any]) -> list[str]:
    return [result.state for result in results]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny course, built once; tests that change it copy it."""
    root = tmp_path_factory.mktemp("course")
    write(root, LESSON)
    write(root, SOLUTION, "solutions")
    results = build(root, style=False)
    assert states(results) == ["written"] * 3, results
    return root


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    for path in [*built.rglob("*.py"), *built.rglob("*.ipynb")]:
        target = tmp_path / path.relative_to(built)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path


def test_building_twice_gives_the_same_bytes_also_beside_a_machine_dependent_cell(copied: Path) -> None:
    before = {path: path.read_bytes() for path in copied.rglob("*.ipynb")}
    assert states(build(copied, style=False, execute=True)) == ["unchanged"] * 3
    assert before == {path: path.read_bytes() for path in copied.rglob("*.ipynb")}
    assert states(build(copied, style=False, execute=True, check=True)) == ["unchanged"] * 3


def test_a_new_cell_above_a_machine_dependent_one_leaves_nothing_for_the_next_build(copied: Path) -> None:
    before = saved(copied).cells[-2].outputs[0]
    write(copied, LESSON.replace("# A time.", "# A sum.\n\n# %%\n1 + 1\n\n# %% [markdown]\n# A time."))
    assert states(build(copied, ["01"], style=False))[0] == "written"
    after = saved(copied).cells[-2].outputs[0]
    assert (after.data, after.execution_count) == (before.data, before.execution_count + 1)
    assert states(build(copied, ["01"], style=False, execute=None, check=True))[0] == "unchanged"


def test_a_built_notebook_holds_nothing_of_the_machine(built: Path) -> None:
    notebook = saved(built)
    assert notebook.nbformat_minor == 5
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, 2, 3, 4]
    assert code[0].outputs[0].text == "one\n"
    assert code[0].outputs[1].execution_count == 1
    assert set(code[1].outputs[0].data) == {"image/png", "text/plain"}
    assert b"tEXt" not in base64.b64decode(code[1].outputs[0].data["image/png"])
    assert str(built) not in json.dumps(notebook)


def test_a_saved_traceback_has_the_notebooks_lines_and_no_path(built: Path) -> None:
    error = [out for cell in saved(built).cells for out in cell.get("outputs", []) if out.output_type == "error"]
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error[0].traceback))
    assert 'json.loads("{")' in text
    assert "File " not in text


def test_an_exercise_has_the_check_and_no_answer_no_hidden_test_and_no_output(built: Path) -> None:
    text = (built / "exercises" / "01_adding.ipynb").read_text()
    assert "the secret" not in text
    assert "10**6" not in text
    assert "BEGIN" not in text
    cells = {cell.metadata.get("nbgrader", {}).get("grade_id"): cell for cell in saved(built, "exercises").cells}
    stub = 'def add(a, b):\n    """The sum."""\n    raise NotImplementedError("write your answer to add here")'
    assert cells["add"].source == stub
    assert cells["add_check"].source == 'assert add(1, 2) == 3\nprint("add: passed")'
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells.values())


def test_the_metadata_of_an_exercise_is_complete_under_nbgraders_schema_3(built: Path) -> None:
    cells = [cell for cell in saved(built, "exercises").cells if "nbgrader" in cell.metadata]
    for cell in cells:
        meta = cell.metadata.nbgrader
        required = {"schema_version", "grade", "locked", "solution", "task", "grade_id", "cell_type"}
        assert required <= set(meta) <= required | {"points"}
        assert meta.schema_version == 3
        assert all(isinstance(meta[flag], bool) for flag in ("grade", "locked", "solution", "task"))
        assert re.fullmatch(r"[a-zA-Z0-9_\-]+", meta.grade_id)
        assert ("points" in meta) == meta.grade
        assert meta.cell_type == cell.cell_type
    answer, check = cells
    assert (answer.metadata.nbgrader.locked, check.metadata.nbgrader.locked) == (False, True)
    assert check.metadata.editable is False
    assert check.metadata.nbgrader.points == 2
    assert len({cell.metadata.nbgrader.grade_id for cell in cells}) == len(cells)


def test_a_stale_source_is_detected_without_a_kernel_and_its_cell_named(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--root", str(copied), "--draft", "--check"]) == 0
    write(copied, LESSON.replace("2 + 2", "2 + 3"))
    write(copied, SOLUTION.replace("5 minutes", "6 minutes"), "solutions")
    before = (copied / "notebooks" / "01_adding.ipynb").read_bytes()
    assert main(["--root", str(copied), "--draft", "--check"]) == 1
    shown = capsys.readouterr().out
    assert "stale       notebooks/01_adding.ipynb: cell 2 (code, `# a picture, and two streams`) differs" in shown
    assert "stale       solutions/01_adding.ipynb: cell 2 (markdown, `## Add`) differs from its source" in shown
    assert "stale       exercises/01_adding.ipynb: cell 2 (markdown, `## Add`) differs from its source" in shown
    assert (copied / "notebooks" / "01_adding.ipynb").read_bytes() == before


def test_new_prose_is_built_without_running_anything_and_code_is_not(copied: Path) -> None:
    write(copied, LESSON.replace("A time.", "Another time."))
    assert states(build(copied, [1], style=False, execute=False)) == ["written", "unchanged", "unchanged"]
    assert "Another time." in (copied / "notebooks" / "01_adding.ipynb").read_text()
    assert saved(copied).cells[1].outputs[0].text == "one\n"
    write(copied, LESSON.replace("2 + 2", "2 + 3"))
    assert states(build(copied, [1], style=False, execute=False)) == ["stale", "unchanged", "unchanged"]


def test_outputs_that_are_not_what_the_code_gives_now_are_found_by_executing(copied: Path) -> None:
    path = copied / "notebooks" / "01_adding.ipynb"
    path.write_text(path.read_text().replace('"one\\n"', '"won\\n"'))
    assert states(build(copied, ["01"], check=True, execute=False, style=False))[0] == "unchanged"
    results = build(copied, ["01"], check=True, execute=True, style=False)
    assert states(results) == ["stale", "unchanged", "unchanged"]
    assert results[0].problems == ["cell 2 (code, `# a picture, and two streams`) gives other outputs now"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda nb: nb.metadata.language_info.update(version="3.14"), "was saved by an editor"),
        (lambda nb: nb.cells[1].update(id="other"), "was saved by an editor"),
        (lambda nb: nb.cells[1].update(execution_count=9), "was saved by an editor"),
        (lambda nb: nb.cells[1].update(execution_count=None), "was not run"),
        (lambda nb: nb.cells[-2].metadata.update(tags=["x"]), "has other tags or metadata"),
        (lambda nb: nb.cells.pop(), "has 8 cells, its source 9"),
    ],
)
def test_a_notebook_edited_by_hand_is_stale(copied: Path, change: Any, sentence: str) -> None:
    notebook = saved(copied)
    change(notebook)
    (copied / "notebooks" / "01_adding.ipynb").write_bytes(to_bytes(notebook))
    results = build(copied, ["01"], check=True, execute=False, style=False)
    assert results[0].state == "stale"
    assert sentence in results[0].problems[0]


def test_a_notebook_without_a_source_is_stale(copied: Path) -> None:
    (copied / "exercises" / "02_gone.ipynb").write_text("{}")
    results = build(copied, check=True, execute=False, style=False)
    assert (results[-1].path, results[-1].state) == ("exercises/02_gone.ipynb", "stale")


def test_a_notebook_that_was_never_built_is_stale(course: Path) -> None:
    results = build(course, check=True, execute=False, style=False)
    assert [result.problems for result in results] == [["is not built"]] * 3


@pytest.mark.parametrize(
    ("folder", "name", "sentence"),
    [
        ("solutions", "02_other", "solutions/src/02_other.py matches no lesson"),
        ("notebooks", "01_subtracting", "has the same number as 01_adding.py"),
        ("notebooks", "Adding", "a source is named NN_name.py"),
    ],
)
def test_names_that_do_not_match_are_refused(course: Path, folder: str, name: str, sentence: str) -> None:
    write(course, LESSON, folder, name)
    with pytest.raises(ValueError, match=sentence):
        build(course, execute=False)


def test_a_lesson_that_is_not_there_is_refused_with_the_list(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", str(course), "07"]) == 2
    assert "no lesson 07: there are 01_adding" in capsys.readouterr().err
    assert main(["--root", str(course / "solutions" / "src"), "01"]) == 2
    assert "is this the folder of the course?" in capsys.readouterr().err


def test_reading_a_source_twice_gives_the_same_notebook_with_distinct_ids(tmp_path: Path) -> None:
    path = tmp_path / "01_x.py"
    path.write_text("# %%\n# %%px --targets 0,2\nrank + 1\n\n# %%\n1\n\n\n\n# %%\n1\n")
    first, second = read_source(path), read_source(path)
    assert to_bytes(first) == to_bytes(second)
    assert first.cells[0].source == "%%px --targets 0,2\nrank + 1"
    assert len({cell.id for cell in first.cells}) == 3
    assert all(not cell.metadata for cell in first.cells)


def test_a_png_without_text_chunks_is_left_as_it_is() -> None:
    text = base64.b64encode(b"no png").decode()
    assert strip_png(text) == text
