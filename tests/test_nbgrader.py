"""The real nbgrader takes our solutions as they are: generate_assignment, autograde, export."""

from __future__ import annotations

import json

import pytest

from tests import grade_cases as cases
from tests import nbgrader_course
from tests.grade_thirty import ALL
from tests.nbgrader_course import NAME, Course

STEMS = ["02_cost", "05_columns_and_rows"]  # answers of the notebook itself, and of the ranks
WORTH = {"column_product": 2, "row_product": 2}

pytestmark = pytest.mark.skipif(not nbgrader_course.is_here(), reason=nbgrader_course.NOT_HERE)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory, fork_server: str) -> Course:
    """anna handed in a solution; ben one wrong answer, one right one and an edited check. Of the
    other lesson nothing was handed in: a script (`make grading`) autogrades them all.
    """
    made = Course(tmp_path_factory.mktemp("nbgrader"), STEMS)
    made.nbgrader("generate_assignment", NAME)
    made.submit("anna", STEMS[1], cases.to_bytes(cases.book("solutions", STEMS[1])))
    mixed = json.loads(made.released(STEMS[1]))
    answers = {"column_product": cases.wrong("column_product__averaged"), "row_product": cases.solution("row_product")}
    for cell in mixed["cells"]:
        name = cases.grade_id(cell)
        cell["source"] = answers.get(name, "pass" if name == "check_parallel_mlp" else cell["source"])
    made.submit("ben", STEMS[1], cases.to_bytes(mixed))
    made.nbgrader("autograde", NAME)
    return made


@pytest.mark.parametrize("stem", STEMS)
def test_what_is_released_has_no_answer_no_output_and_every_check(course: Course, stem: str) -> None:
    cells, official = json.loads(course.released(stem))["cells"], cases.book("exercises", stem)["cells"]
    assert [cases.grade_id(cell) for cell in cells] == [cases.grade_id(cell) for cell in official]
    for cell, ours in zip(cells, official, strict=True):
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            assert "raise NotImplementedError" in cases.source(cell) and "SOLUTION" not in cases.source(cell)
        else:
            assert cases.source(cell) == cases.source(ours)
        assert not cell.get("outputs")


def test_solutions_get_every_point_and_a_wrong_answer_or_an_edited_check_none(course: Course) -> None:
    points = course.points()
    possible = points["anna"][1]
    assert points == {"anna": (ALL, possible), "ben": (WORTH["row_product"], possible)} and possible > ALL


def test_a_wrong_answer_s_notebook_shows_the_misconception(course: Course) -> None:
    text = (course.root / "autograded" / "ben" / NAME / f"{STEMS[1]}.ipynb").read_text("utf-8")
    assert "dx is p times too small" in text and "row_product: passed" in text
