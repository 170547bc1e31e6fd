"""Exercises of lessons 01, 04 to 07: a stub fails, the solution passes, each mistake has a sentence of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpcourse import check
from tpcourse.authoring import nbgrader
from tpcourse.authoring.exercise import to_exercise
from tpcourse.authoring.source import read_source
from tpcourse.check.misconceptions import GENERAL
from tpcourse.check.runner import LESSONS, find

ROOT = Path(__file__).parents[1]
WITH_RANKS = ("01", "04", "05", "06", "07")
SOLUTIONS = {lesson: read_source(next((ROOT / "solutions" / "src").glob(f"{lesson}_*.py"))) for lesson in WITH_RANKS}
WRONG = sorted(path for lesson in SOLUTIONS for path in (ROOT / "tests" / "wrong_answers" / lesson).glob("*.py"))
PATIENCE_S = 3.0


class Fewer:
    """The first ranks of a world, as a world of their own: what a check sees of a smaller machine."""

    def __init__(self, ranks, size):
        self.ranks, self.size = ranks, size

    def __len__(self):
        return self.size

    def __getattr__(self, name):
        return getattr(self.ranks, name)


@pytest.fixture
def ranks(shared_ranks):
    shared_ranks.run_cell("\n".join(f"globals().pop({name!r}, None)" for name in LESSONS))
    with shared_ranks.patient(PATIENCE_S):
        yield shared_ranks


def answers(notebook):
    """grade id -> the answer cell, without %%px."""
    return {
        cell.metadata["nbgrader"]["grade_id"]: cell.source.removeprefix("%%px\n")
        for cell in notebook.cells
        if nbgrader.is_answer(cell)
    }


def imports(notebook):
    """What the cells between the exercises import on the ranks."""
    cells = [cell for cell in notebook.cells if cell.source.startswith("%%px\n") and not nbgrader.is_answer(cell)]
    return "".join(cell.source.removeprefix("%%px\n") + "\n" for cell in cells)


def lesson_of(name):
    """ "04" for an exercise of lesson 04."""
    return LESSONS[name].split(".")[0].removeprefix("lesson")


def exercise_of(path):
    return path.stem.split("__")[0]


def sentence_of(path):
    """The part of the feedback that a wrong answer must get: its first line."""
    return path.read_text("utf-8").splitlines()[0].removeprefix("# ")


def failure(ranks, name):
    with pytest.raises(check.CheckFailed) as caught:
        check.exercise(ranks, name)
    return caught.value


@pytest.mark.parametrize("lesson", SOLUTIONS)
def test_there_is_an_answer_and_a_check_for_every_exercise(lesson):
    checks = [cell.source for cell in SOLUTIONS[lesson].cells if nbgrader.is_check(cell)]
    names = [name for name in LESSONS if lesson_of(name) == lesson]
    assert list(answers(SOLUTIONS[lesson])) == names
    assert checks == [f'check.exercise(ranks, "{name}")' for name in names]


def test_every_exercise_has_at_least_three_wrong_answers():
    counts = {name: sum(exercise_of(path) == name for path in WRONG) for name in LESSONS}
    assert min(counts.values()) >= 3


@pytest.mark.parametrize("name", LESSONS)
def test_wrong_answers_of_an_exercise_have_sentences_of_their_own(name):
    sentences = [sentence_of(path) for path in WRONG if exercise_of(path) == name]
    known = [re.sub(r"\s+", " ", m.sentence) for m in (*find(name).misconceptions, *GENERAL)]
    owners = [[i for i, text in enumerate(known) if sentence in text] for sentence in sentences]
    assert all(len(found) == 1 for found in owners), dict(zip(sentences, owners, strict=True))
    assert len({found[0] for found in owners}) == len(sentences)


@pytest.mark.parametrize("name", LESSONS)
def test_the_untouched_exercise_is_not_started(ranks, name):
    ranks.run_cell(answers(to_exercise(SOLUTIONS[lesson_of(name)], lesson_of(name)))[name])
    found = failure(ranks, name)
    assert found.state == "not started"
    assert str(found).startswith(f"{name}: not started")


@pytest.mark.parametrize("name", LESSONS)
def test_the_solution_passes_and_says_the_same_on_two_three_and_four_ranks(ranks, name, capsys):
    notebook = SOLUTIONS[lesson_of(name)]
    ranks.run_cell("from tpcourse.wire import exchange\n" + imports(notebook) + answers(notebook)[name])
    blocks = set()
    for size in (2, 3, 4):
        check.exercise(Fewer(ranks, size), name)
        blocks.add(capsys.readouterr().out)
    assert len(blocks) == 1
    assert blocks.pop().startswith(f"{name}: passed\n  values         ✓ ")


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_wrong_answer_is_rejected_with_its_own_sentence(ranks, path, capsys):
    ranks.run_cell(path.read_text("utf-8"))
    found = failure(ranks, exercise_of(path))
    text = re.sub(r"\s+", " ", str(found))
    assert found.state == "failed" and " why " in text, str(found)
    assert sentence_of(path) in text.split(" why ")[1].split(" hint ")[0], str(found)
    assert capsys.readouterr().out == ""


def test_after_a_check_of_stuck_ranks_the_next_check_works(ranks):
    stuck = next(path for path in WRONG if path.stem == "ring_all_gather__sends_first")
    ranks.run_cell("kept = rank\n" + stuck.read_text("utf-8"))
    assert "Every rank waits in its send" in str(failure(ranks, "ring_all_gather"))
    ranks.run_cell(answers(SOLUTIONS["01"])["ring_all_gather"])
    check.exercise(ranks, "ring_all_gather")
    assert ranks["kept"] == list(range(len(ranks)))


def test_after_a_rank_died_in_a_check_the_next_check_works(ranks):
    body = "    os._exit(3) if rank == 1 else dist.barrier(group)"
    ranks.run_cell(f"import os\ndef ring_all_gather(piece, group):\n{body}")
    assert "rank 1" in str(failure(ranks, "ring_all_gather"))
    ranks.run_cell(answers(SOLUTIONS["01"])["ring_all_gather"])
    check.exercise(ranks, "ring_all_gather")
