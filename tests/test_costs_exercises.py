"""The exercises of lesson 02: the untouched stub fails, the solution passes, each mistake gets its own sentence."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tpcourse import check
from tpcourse.authoring import nbgrader
from tpcourse.authoring.exercise import to_exercise
from tpcourse.authoring.source import read_source
from tpcourse.check import calculation
from tpcourse.check.calculation import BORROWED, CALCULATIONS, attempt, find_calculation, near, shown
from tpcourse.check.lesson02 import predict as prediction
from tpcourse.costs import MODELS, Measurement

ROOT = Path(__file__).parents[1]
SOLUTION = read_source(ROOT / "solutions" / "src" / "02_cost.py")
WRONG = sorted((ROOT / "tests" / "wrong_answers" / "02").glob("*.py"))
NAMES = [name for name, module in CALCULATIONS.items() if module.startswith("lesson02.")]


class NoRanks:
    """Ranks on which nothing was defined; a run gives times on a line, or whatever `times` makes of them."""

    backend, patience = "gloo", 20.0

    def __init__(self, times=lambda m: m.seconds):
        self.times = times

    def __len__(self):
        return 4

    def patient(self, seconds):
        import contextlib

        return contextlib.nullcontext()

    within = patient

    def run(self, fn, *args, **kwargs):
        if fn.__name__ == "in_rank":
            return [False] * 4
        points = [Measurement(op, 4, n, 2e-4 + n / 1e9) for n in args[0] for op in prediction.OPS]
        return [[Measurement(m.op, m.p, m.num_bytes, self.times(m)) for m in points]]


@pytest.fixture
def notebook(monkeypatch):
    """The names of the notebook's cells."""
    names = {}
    monkeypatch.setattr(calculation, "namespace", lambda: names)
    return names


def answers(source):
    return {
        cell.metadata["nbgrader"]["grade_id"]: cell.source for cell in source.cells if nbgrader.is_answer(cell)
    }


def run_all(names, source):
    for text in answers(source).values():
        exec(text, names)


def sentence_of(path):
    return path.read_text("utf-8").splitlines()[0].removeprefix("# ")


def exercise_of(path):
    return path.stem.split("__")[0]


def failure(name, ranks=None):
    with pytest.raises(check.CheckFailed) as caught:
        check.exercise(ranks or NoRanks(), name)
    return caught.value


def test_there_is_an_answer_and_a_check_for_every_exercise():
    checks = [cell.source for cell in SOLUTION.cells if nbgrader.is_check(cell)]
    assert list(answers(SOLUTION)) == NAMES
    assert checks == [f'check.exercise(ranks, "{name}")' for name in NAMES]


def test_every_exercise_has_at_least_three_wrong_answers():
    assert min(sum(exercise_of(path) == name for path in WRONG) for name in NAMES) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_wrong_answers_of_an_exercise_have_sentences_of_their_own(name):
    sentences = [sentence_of(path) for path in WRONG if exercise_of(path) == name]
    known = [*(mistake.sentence for mistake in find_calculation(name).mistakes), BORROWED]
    owners = [[i for i, text in enumerate(known) if sentence in text] for sentence in sentences]
    assert all(len(found) == 1 for found in owners), dict(zip(sentences, owners, strict=True))
    assert len({found[0] for found in owners}) == len(sentences)


@pytest.mark.parametrize("name", NAMES)
def test_the_untouched_exercise_is_not_started(notebook, name):
    run_all(notebook, to_exercise(SOLUTION, "02"))
    found = failure(name)
    assert found.state == "not started"
    assert str(found).startswith(f"{name}: not started")


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes_twenty_times_and_says_the_same_each_time(notebook, name, capsys):
    run_all(notebook, SOLUTION)
    blocks = set()
    for _ in range(20):
        check.exercise(NoRanks(), name)
        blocks.add(capsys.readouterr().out)
    assert len(blocks) == 1
    assert blocks.pop().startswith(f"{name}: passed\n  values         ✓ ")


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_wrong_answer_is_rejected_with_its_own_sentence_whatever_the_numbers(notebook, path, capsys):
    run_all(notebook, SOLUTION)
    exec(path.read_text("utf-8"), notebook)
    for _ in range(10):
        found = failure(exercise_of(path))
        text = re.sub(r"\s+", " ", str(found))
        assert found.state == "failed"
        assert sentence_of(path) in text.split(" why ")[1].split(" hint ")[0], str(found)
    assert capsys.readouterr().out == ""


def test_an_answer_that_nobody_defined_or_defined_in_the_ranks_is_told_so(notebook):
    assert "does not know the name predict" in re.sub(r"\s+", " ", str(failure("predict")))
    ranks = NoRanks()
    ranks.run = lambda *_: [True] * 4
    assert "this answer's cell has no %%px" in re.sub(r"\s+", " ", str(failure("predict", ranks)))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def fit_line(sizes, times):\n    return None", "gives None; a pair"),
        ("def fit_line(sizes, times):\n    return 1.0, float('nan')", "gives alpha, beta = 1, nan"),
        ("def fit_line(sizes):\n    return 1", "raised TypeError"),
        ("def fit_line(sizes, times):\n    sizes.sort(); times.clear(); return 1, 1", "changes its arguments"),
        ("def fit_line(sizes, times):\n    print('fit_line: passed'); return 1, 1", "gives alpha, beta = 1, 1"),
    ],
)
def test_whatever_an_answer_returns_raises_changes_or_prints_is_told_and_not_passed(notebook, capsys, source, words):
    exec(source, notebook)
    assert words in re.sub(r"\s+", " ", str(failure("fit_line")))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("result", ["None", "0", "-1.0", "True", "'25e6'", "1e30", "float('nan')", "[1]"])
def test_a_bucket_that_is_no_size_is_told_what_was_expected(notebook, result):
    exec(f"def bucket_bytes(*numbers):\n    return {result}", notebook)
    assert "a number of bytes above 0" in re.sub(r"\s+", " ", str(failure("bucket_bytes")))


@pytest.mark.parametrize("result", ["None", "{}", "({}, 2)", "({2: 1}, 2)", "([1, 2], 2)", "({2: 'a', 4: 1, 8: 2}, 1)"])
def test_ratios_in_another_form_are_told_what_was_expected(notebook, result):
    exec(f"def tensor_parallel(*arguments):\n    return {result}", notebook)
    text = re.sub(r"\s+", " ", str(failure("tensor_parallel")))
    assert "a pair was expected" in text or "gives r = " in text


def test_a_prediction_that_does_not_hold_on_the_ranks_fails_with_the_error_and_the_limit(notebook):
    run_all(notebook, SOLUTION)
    slow = NoRanks()
    honest = notebook["predict"]
    calls = []

    def right_in_theory(measured, wanted):
        calls.append(1)
        factor = 1.0 if len(measured) != 15 else 2.0  # only the run on the ranks has five sizes
        return [factor * t for t in honest(measured, wanted)]

    notebook["predict"] = right_in_theory
    text = re.sub(r"\s+", " ", str(failure("predict", slow)))
    assert "this machine ✗ half of the predictions are off by 100% or more; the limit is 35%" in text
    assert "values ✓" in text


def test_on_a_machine_too_unsteady_for_any_line_the_axis_is_blocked_and_the_check_passes(notebook, capsys):
    run_all(notebook, SOLUTION)
    flip = np.random.default_rng(1)
    check.exercise(NoRanks(lambda m: m.seconds * float(flip.choice([0.1, 10]))), "predict")
    assert "this machine   - times vary too much" in capsys.readouterr().out


def test_a_run_on_real_ranks_holds_the_solution_s_predictions(notebook, shared_ranks, capsys):
    run_all(notebook, SOLUTION)
    check.exercise(shared_ranks, "predict")
    assert "✓ a run at sizes that were left out agrees with the predictions" in capsys.readouterr().out


def test_an_unknown_exercise_is_a_value_error_that_lists_these_too():
    with pytest.raises(ValueError, match="fit_line, predict, bucket_bytes, tensor_parallel"):
        check.exercise(NoRanks(), "fit")


def test_an_answer_may_read_the_course_s_data_but_not_call_its_answer():
    spec = find_calculation("tensor_parallel")
    model, flops, speed = spec.cases(np.random.default_rng(0))[0]
    assert not attempt(spec, lambda model, *_: (model.columns, 1), (model, flops, speed)).borrowed

    def through_a_helper(model, *_):
        from tpcourse import costs

        return costs.layer_ratio(model, 2, flops, speed), 1

    assert attempt(spec, through_a_helper, (model, flops, speed)).borrowed


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [(1.0, 1.0 + 1e-9, True), (1.0, 1.1, False), ([1, 2], (1, 2), True), ([1], (1, 2), False), (None, 1, False),
     ({2: 1.0}, {2: 1.0}, True), ({2: 1.0}, {4: 1.0}, False), (float("nan"), 1.0, False), (np.ones(2), [1, 1], True)],
)  # fmt: skip
def test_results_agree_up_to_rounding_whatever_holds_them(a, b, same):
    assert near(a, b) is same


def test_values_are_shown_in_few_words():
    assert shown(([1.0, 2.0, 3.0, 4.0, 5.0], 0.123456)) == "([1, 2, 3, 4, ...], 0.1235)"
    rows = [("all_reduce", 4096, 2.4861e-4)] * 6
    assert shown(rows) == "[(all_reduce, 4,096, 0.0002486), (all_reduce, 4,096, 0.0002486), ...]"
    assert shown(MODELS["Llama 3 8B"]).startswith("(D = 4,096, F = 14,336, H = 32, kv_heads = 8, K = 128")
    assert shown(np.array(2.0)) == "2.0"


@pytest.mark.parametrize("name", NAMES)
def test_a_failed_check_names_each_input(notebook, name):
    exec(f"def {name}(*arguments):\n    return -1", notebook)
    text = re.sub(r"\s+", " ", str(failure(name)))
    assert all(f"{argument} = " in text for argument in find_calculation(name).arguments)


@pytest.mark.parametrize("rounded", ["math.ceil(n)", "round(n)", "n", "round(n, 3)"])
def test_a_bucket_of_whole_bytes_is_as_good_if_no_rest_is_left(notebook, rounded):
    run_all(notebook, SOLUTION)
    answer = "import math\nexact = bucket_bytes\ndef bucket_bytes(*numbers):\n    n = exact(*numbers)\n    return "
    exec(answer + rounded, notebook)
    for _ in range(10):
        check.exercise(NoRanks(), "bucket_bytes")


def test_a_last_bucket_of_few_bytes_is_told_with_its_cost(notebook):
    exec((ROOT / "tests" / "wrong_answers" / "02" / "bucket_bytes__rest.py").read_text("utf-8"), notebook)
    text = re.sub(r"\s+", " ", str(failure("bucket_bytes")))
    assert re.search(r"makes \d+ buckets, the last of \d+ bytes, and it costs alpha like the others", text)


STRANGE = [
    "None", "()", "(1, 2)", "[]", "[1, 2]", "{}", "{2: 1}", "'25'", "1j", "object()", "print", "np.ones(2)",
    "np.array(1)", "[np.ones(2), np.ones(2)]", "[np.ones(2)] * 18", "[None] * 18", "[[1]] * 18",
    "({2: np.ones(2)}, np.ones(2))",
    "({}, None)", "torch.ones(2)", "[torch.ones(2)] * 18", "(torch.ones(2), None)", "10 ** 400", "iter([1])", "dict",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("result", STRANGE)
def test_whatever_comes_back_is_a_failed_check_and_no_error(notebook, name, result):
    exec(f"import numpy as np\nimport torch\ndef {name}(*arguments):\n    return {result}", notebook)
    found = failure(name)
    assert found.state == "failed" and " gives " in str(found) or " predicts " in str(found), str(found)


def test_arguments_that_cannot_be_compared_any_more_were_changed(notebook):
    exec("import numpy as np\ndef fit_line(sizes, times):\n    sizes[0] = np.ones(2)\n    return 1, 1", notebook)
    assert "changes its arguments" in re.sub(r"\s+", " ", str(failure("fit_line")))
