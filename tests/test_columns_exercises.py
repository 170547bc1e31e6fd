"""Lesson 05's checks: two ways to the right answer agree, inputs leave nothing to luck, kernels are not an answer."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tpcourse import check
from tpcourse.check.compare import Named, first_difference
from tpcourse.check.evidence import Evidence, Outcome
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
