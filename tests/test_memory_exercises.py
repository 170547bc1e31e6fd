"""The exercises of lesson 03: untouched they fail, solved they pass, each mistake gets its own sentence."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from test_wrong_answers import Fewer, answers, exercise_of, failure, sentence_of

from tpcourse import check
from tpcourse.authoring import nbgrader
from tpcourse.authoring.exercise import to_exercise
from tpcourse.authoring.source import read_source
from tpcourse.check.weighing import (
    BORROWED,
    NOT_RETURNED,
    WEIGHINGS,
    Axis,
    Weighing,
    find_weighing,
    judge,
    within,
)

ROOT = Path(__file__).parents[1]
SOLUTION = read_source(ROOT / "solutions" / "src" / "03_memory.py")
WRONG = sorted((ROOT / "tests" / "wrong_answers" / "03").glob("*.py"))


@pytest.fixture
def ranks(shared_ranks):
    shared_ranks.run_cell("\n".join(f"globals().pop({name!r}, None)" for name in WEIGHINGS))
    return shared_ranks


def test_there_is_an_answer_and_a_check_for_every_exercise():
    checks = [cell.source for cell in SOLUTION.cells if nbgrader.is_check(cell)]
    assert list(answers(SOLUTION)) == list(WEIGHINGS)
    assert checks == [f'check.exercise(ranks, "{name}")' for name in WEIGHINGS]


def test_every_exercise_has_three_to_nine_wrong_answers():
    counts = [sum(exercise_of(path) == name for path in WRONG) for name in WEIGHINGS]
    assert all(3 <= count <= 9 for count in counts)
    assert sum(counts) == len(WRONG)


@pytest.mark.parametrize("name", WEIGHINGS)
def test_wrong_answers_of_an_exercise_have_sentences_of_their_own(name):
    sentences = [sentence_of(path) for path in WRONG if exercise_of(path) == name]
    known = [mistake.sentence for mistake in (BORROWED, *find_weighing(name).mistakes, NOT_RETURNED)]
    owners = [[i for i, text in enumerate(known) if sentence in text] for sentence in sentences]
    assert all(len(found) == 1 for found in owners), dict(zip(sentences, owners, strict=True))
    assert len({found[0] for found in owners}) == len(sentences)


@pytest.mark.parametrize("name", WEIGHINGS)
def test_the_untouched_exercise_is_not_started(ranks, name):
    ranks.run_cell(answers(to_exercise(SOLUTION, "03"))[name])
    found = failure(ranks, name)
    assert found.state == "not started"
    assert str(found).startswith(f"{name}: not started")


@pytest.mark.parametrize("name", WEIGHINGS)
def test_the_solution_passes_and_says_the_same_on_one_to_four_ranks(ranks, name, capsys):
    ranks.run_cell(answers(SOLUTION)[name])
    blocks = set()
    for size in (1, 2, 4):
        check.exercise(Fewer(ranks, size), name)
        blocks.add(capsys.readouterr().out)
    assert len(blocks) == 1
    block = blocks.pop()
    assert block.startswith(f"{name}: passed\n  values         ✓ ")
    assert "\n  bytes held     ✓ " in block
    assert "\n  communication  ✓ nothing is sent" in block


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_wrong_answer_is_rejected_with_its_own_sentence(ranks, path, capsys):
    ranks.run_cell(path.read_text("utf-8"))
    found = failure(ranks, exercise_of(path))
    text = re.sub(r"\s+", " ", str(found))
    assert found.state == "failed"
    assert " why " in text, str(found)
    assert sentence_of(path) in text.split(" why ")[1].split(" hint ")[0], str(found)
    assert capsys.readouterr().out == ""


def test_an_answer_that_sends_is_rejected(ranks):
    ranks.run_cell(answers(SOLUTION)["saved_bytes"] + "\nalone = saved_bytes\n")
    ranks.run_cell(
        "def saved_bytes(block, x):\n    dist.all_reduce(torch.ones(1, device=device))\n    return alone(block, x)"
    )
    assert "calls all_reduce; nothing has to be sent" in str(failure(ranks, "saved_bytes"))


def test_an_answer_that_raises_or_waits_for_ever_is_told_so(ranks):
    ranks.run_cell("def saved_bytes(block, x):\n    return missing")
    assert "raised NameError: name 'missing' is not defined" in re.sub(
        r"\s+", " ", str(failure(ranks, "saved_bytes"))
    )
    with ranks.patient(3.0):
        ranks.run_cell("def saved_bytes(block, x):\n    if rank == 0:\n        dist.barrier()\n    return 0")
        assert "barrier" in str(failure(ranks, "saved_bytes"))
        ranks.run_cell(answers(SOLUTION)["saved_bytes"])
        check.exercise(ranks, "saved_bytes")


OWN_VERSIONS = {
    "imported": """
from tpcourse.memory import saved
def saved_bytes(block, x):
    return saved(block, x).bytes""",
    "imported inside": """
def saved_bytes(block, x):
    from tpcourse import memory
    return memory.saved(block, x).bytes""",
    "by a helper": """
from tpcourse import memory
def helper(*given):
    return memory.held(*given)
def model_states(model, optimizer):
    return helper(model, optimizer)""",
    "recompute": """
from tpcourse.layer import run_layer
def selective_recompute(layer, x):
    return run_layer(layer, x, "selective")""",
}


@pytest.mark.parametrize("road", OWN_VERSIONS)
def test_the_course_s_own_version_is_not_an_answer(ranks, road):
    ranks.run_cell(OWN_VERSIONS[road])
    name = re.findall(r"def (\w+)\(", OWN_VERSIONS[road])[-1]
    assert "The answer calls the course's own version" in re.sub(r"\s+", " ", str(failure(ranks, name)))


def test_an_answer_that_returns_nothing_is_told_so(ranks):
    ranks.run_cell("def model_states(model, optimizer):\n    pass")
    assert "is a `return` missing?" in str(failure(ranks, "model_states"))


def test_an_answer_in_the_notebook_or_on_some_ranks_only_is_not_started(ranks):
    ranks.run_cell(answers(SOLUTION)["saved_bytes"], targets=[0])
    assert "Rank 1 does not know saved_bytes" in re.sub(r"\s+", " ", str(failure(ranks, "saved_bytes")))


@pytest.mark.parametrize("name", WEIGHINGS)
def test_trials_differ_between_ranks_and_runs(name):
    make = find_weighing(name).make
    generator = np.random.default_rng(7)
    draws = [str(make(generator, case)) for _ in range(4) for case in (0, 1)]
    assert len(set(draws)) == len(draws)


def test_each_axis_is_judged_and_the_first_mistake_that_shows_everywhere_is_named():
    spec = Weighing(
        "x", "", lambda *_: {}, (Axis("values", "right", lambda f: ""), Axis("bytes held", "few", within)), ()
    )
    passed = judge(spec, [{"rank": 0, "held": 5, "budget": 5, "sent": ()}])
    assert passed.state == "passed"
    failed = judge(spec, [{"rank": 0, "held": 5, "budget": 5}, {"rank": 1, "held": 6_000, "budget": 5}])
    assert "rank 1: 6,000 bytes are held, the budget is 5" in str(failed)
    assert failed.state == "failed"
    assert judge(spec, [{"stubbed": True}]).state == "not started"


STRANGE = [
    "None", "()", "(1, 2)", "[1, 2]", "{}", "{'parameter': []}", "'25'", "1j", "print", "np.ones(2)", "torch.ones(2)",
    "[torch.ones(2)]", "{'gradient': torch.ones(2)}", "10 ** 400", "iter([1])", "torch.ones(2).bool()",
]  # fmt: skip


@pytest.mark.parametrize("name", WEIGHINGS)
def test_whatever_comes_back_is_a_failed_check_and_no_error(ranks, name):
    for result in STRANGE:
        ranks.run_cell(f"import numpy as np\ndef {name}(*arguments):\n    return {result}")
        found = failure(ranks, name)
        assert found.state == "failed" and " raised " not in str(found), str(found)
        assert ("is a `return` missing?" in str(found)) == (result == "None"), str(found)


def test_a_list_of_losses_is_told_as_a_list(ranks):
    ranks.run_cell("def train_steps(model, optimizer, batches):\n    return [1.0]")
    text = str(failure(ranks, "train_steps"))
    assert "a list of 1 was returned, not a tensor" in text and "torch.stack(losses)" in text


def test_a_count_may_be_a_number_of_numpy(ranks, capsys):
    ranks.run_cell(answers(SOLUTION)["saved_bytes"] + "\nimport numpy as np\nplain = saved_bytes\n")
    ranks.run_cell("def saved_bytes(block, x):\n    return np.int64(plain(block, x))")
    check.exercise(ranks, "saved_bytes")
