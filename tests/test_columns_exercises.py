"""Lesson 05's checks: two ways to the right answer agree, inputs leave nothing to luck, kernels are not an answer."""

from __future__ import annotations

import importlib
import pickle
import re
from contextlib import suppress

import numpy as np
import pytest
import torch
from exercise_help import Answers

from tpcourse import check
from tpcourse.check import rank_side
from tpcourse.check.axes import judge
from tpcourse.check.compare import Named, first_difference
from tpcourse.check.evidence import RETURNED, Evidence, Outcome
from tpcourse.check.lesson05 import column_product, parallel_attention, parallel_mlp, residual_mlp, row_product
from tpcourse.check.lesson05 import vocabulary_loss as vocabulary
from tpcourse.check.lesson05.given import Given
from tpcourse.check.runner import LESSONS, find

NAMES = [name for name, module in LESSONS.items() if module.startswith("lesson05")]
RIGHT = {
    "column_product": column_product.played(),
    "row_product": row_product.played(),
    "parallel_mlp": parallel_mlp.played(),
    "parallel_attention": parallel_attention.played(),
    "vocabulary_loss": vocabulary.played(),
    "residual_mlp": residual_mlp.played(after="all"),
}


def evidence(name, case, seed=3):
    spec = find(name)
    inputs = spec.make(case, np.random.default_rng(seed))
    return Evidence(case, inputs, spec.expected(case, inputs), [Outcome()] * case.p)


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_algorithm_played_rank_by_rank_is_the_one_device_answer(name):
    for case in find(name).cases(4):
        found = evidence(name, case)
        differences = [first_difference(*pair) for pair in zip(RIGHT[name](found), found.expected, strict=True)]
        assert differences == [None] * case.p


@pytest.mark.parametrize("name", NAMES)
def test_sizes_differ_biases_are_not_zero_and_runs_are_not_alike(name):
    for case in find(name).cases(4):
        arrays = [
            [value.array for given in evidence(name, case, seed).inputs for value in flat(given.values())]
            for seed in (1, 2)
        ]
        assert all(np.abs(array).min() > 0 for array in arrays[0] if array.dtype == np.float64)
        assert not any(np.array_equal(a, b) for a, b in zip(*arrays, strict=True) if a.dtype == np.float64)
        lengths = [size for letter, size in case.sizes.items() if letter not in ("B", "H", "offset")]
        assert len(set(lengths)) == len(lengths)


def flat(values):
    for value in values:
        yield from [value] if isinstance(value, Given) else flat(value) if isinstance(value, list) else []


def test_results_with_names_are_told_by_them():
    right = Named({"y": np.ones(2), "dx": np.ones(3)})
    assert first_difference([np.ones(2), np.ones(3)], right) is None
    assert str(first_difference([np.ones(2), None], right)) == "dx: no gradient arrived"
    assert str(first_difference([np.zeros(2), np.ones(3)], right)).startswith("y: largest relative error 1")
    assert str(first_difference(None, right)) == "nothing was returned"


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("row_product", "row_linear(x, weight, bias, tp=tp)"),
        ("vocabulary_loss", "vocab_cross_entropy(logits, targets, tp=tp, V=V)"),
    ],
)
def test_the_courses_own_kernel_is_not_an_answer(shared_ranks, name, body):
    arguments = {"row_product": "x, weight, bias, tp", "vocabulary_loss": "logits, targets, V, tp"}[name]
    module = {"row_product": "linear", "vocabulary_loss": "vocab"}[name]
    imports = f"from tpcourse.{module} import {body.split('(')[0]}"
    shared_ranks.run_cell(f"{imports}\ndef {name}({arguments}):\n    return {body}")
    with pytest.raises(check.CheckFailed) as caught:
        check.exercise(shared_ranks, name)
    assert "calls the course's own kernel or pair" in re.sub(r"\s+", " ", str(caught.value))


WITH_PROBES = [name for name, module in LESSONS.items() if module.startswith(("lesson05", "lesson06"))]
ODD = {
    "nothing": lambda y: None,
    "a tuple of 2": lambda y: (y, None),
    "a list of 1": lambda y: [y],
    "a list of 0": lambda y: [],
    "a dict of 1": lambda y: {"y": y},
    "a float": lambda y: 1.5,
    "a str": lambda y: "y",
    "a NumPy array": lambda y: y.numpy(),
}


def on_a_rank(name, case, given, answer):
    """What a rank's probe makes of an answer that sends nothing; plain data, as it travels."""
    given = {key: rank_side.to_tensors(value, "cpu") for key, value in pickle.loads(pickle.dumps(given)).items()}
    outcome, probe = Outcome(), importlib.import_module(f"tpcourse.check.{find(name).probe}")
    with suppress(TypeError):  # it is in the outcome
        rank_side.record(outcome, answer, lambda: probe.call(answer, given, [None] * len(case.groups), outcome), given)
    return pickle.loads(pickle.dumps(outcome))


def said_of(name, outcome_of):
    """The whole feedback in one line, if this is the outcome of every rank."""
    cases = [evidence(name, case) for case in find(name).cases(2)]
    for each in cases:
        each.outcomes = [outcome_of(each.case, given) for given in each.inputs]
    verdict = judge(find(name), cases)
    assert verdict.state == "failed"
    return re.sub(r"\s+", " ", str(verdict))


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", WITH_PROBES)
def test_an_answer_that_returns_something_else_is_told_what_it_returned(name, odd):
    y = ODD[odd](torch.ones(2, 3, dtype=torch.float64))
    said = said_of(name, lambda case, given: on_a_rank(name, case, given, lambda *_: y))
    if odd == "nothing":
        assert "nothing was returned" in said
    elif name == "block_gradients" and isinstance(y, list | tuple):
        assert f"{len(y)} tensors instead of 11" in said
    else:
        what = "a list with the gradient of every weight" if name == "block_gradients" else "one tensor alone"
        assert f"TypeError: the answer returned {odd}: return {what}" in said and " why " in said


@pytest.mark.parametrize("result", [None, [], [None], [np.ones(2), None], [[], "y"], [None] * 11, 1.5, "y", np.ones(2)])
@pytest.mark.parametrize("name", WITH_PROBES)
def test_no_result_of_a_rank_is_too_odd_to_be_judged(name, result):
    said = said_of(name, lambda case, given: Outcome(RETURNED, result, facts={"own": "", "pair": "", "forward": 0}))
    assert "the result is wrong on every rank" in said
    if LESSONS[name].startswith("lesson06"):
        assert "calls nothing; the budget has all_" in said


FUNCTIONAL = """
from torch.distributed import _functional_collectives as functional


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, tp):
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return functional.all_reduce(dy, "sum", ctx.tp), None


"""


def test_a_gradient_that_a_functional_collective_still_owes_is_waited_for(shared_ranks, capsys):
    lesson = Answers("05_columns_and_rows")
    lesson.set_up(shared_ranks)
    shared_ranks.run_cell(FUNCTIONAL + lesson.changed("parallel_mlp", ("copy_sum(x, group=tp)", "Copy.apply(x, tp)")))
    check.exercise(shared_ranks, "parallel_mlp")
    assert capsys.readouterr().out.startswith("parallel_mlp: passed")


@pytest.mark.parametrize("waits", [".wait()", ".get_future().wait()"])
def test_a_call_that_is_waited_for_later_is_right(shared_ranks, waits, capsys):
    lesson = Answers("05_columns_and_rows")
    call = "dist.all_reduce(dx, group=ctx.tp"
    shared_ranks.run_cell(lesson.changed("column_product", (f"{call})", f"{call}, async_op=True){waits}")))
    check.exercise(shared_ranks, "column_product")
    assert capsys.readouterr().out.startswith("column_product: passed")
