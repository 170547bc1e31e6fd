"""Lesson 08's checks: what they expect, other right ways, ways around the rules, and E by the clock of a GPU alone."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from exercise_help import failure
from overlap_answers import ANSWERS, AROUND, RIGHT, changed, solution

from tpcourse import check
from tpcourse.check.compare import first_difference
from tpcourse.check.evidence import Evidence, Outcome
from tpcourse.check.lesson08 import common, ring_gather_product, ring_product_scatter
from tpcourse.check.lesson08.trace import Moment, numbered
from tpcourse.check.report import BLOCKED, FAILED, PASSED
from tpcourse.check.runner import LESSONS, find

NAMES = [name for name, module in LESSONS.items() if module.startswith("lesson08")]


def evidence(name, case, seed=3):
    spec = find(name)
    inputs = spec.make(case, np.random.default_rng(seed))
    return Evidence(case, inputs, spec.expected(case, inputs), [Outcome() for _ in range(case.p)])


def found(name):
    return [evidence(name, case) for case in find(name).cases(4)]


def tensors(case, name):
    return [torch.from_numpy(given[name].copy()).requires_grad_() for given in case.inputs]


def close(got, right):
    np.testing.assert_allclose(got, right.detach(), rtol=1e-10, atol=1e-12)


# What the checks expect


def test_the_expected_gradients_of_backward_are_those_of_autograd():
    for case in found("ordered_backward"):
        xs, weights, dys = (tensors(case, name) for name in ("x", "weight", "dy"))
        whole = torch.cat(xs)
        torch.stack([((whole @ w.T) * dy.detach()).sum() for w, dy in zip(weights, dys, strict=True)]).sum().backward()
        for (dx, dweight), x, weight in zip(case.expected, xs, weights, strict=True):
            close(dx, x.grad)
            close(dweight, weight.grad)


def test_the_expected_products_are_those_of_whole_tensors():
    for case in found("ring_gather_product"):
        rows = zip(case.expected, tensors(case, "weight"), tensors(case, "bias"), strict=True)
        for y, weight, bias in rows:
            close(y, torch.nn.functional.linear(torch.cat(tensors(case, "x")), weight, bias))
    for name in ("ring_product_scatter", "pieced_product_scatter"):
        for case in found(name):
            whole = torch.cat(tensors(case, "x"), 1) @ torch.cat(tensors(case, "weight"), 1).T
            for y, right in zip(case.expected, whole.chunk(case.p), strict=True):
                close(y, right)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_differ_and_runs_are_not_alike(name):
    for case in find(name).cases(4):
        pairs = zip(*(evidence(name, case, seed).expected for seed in (1, 2)), strict=True)
        assert all(first_difference(a, b) for a, b in pairs)
        lengths = [size for letter, size in case.sizes.items() if letter != "num_pieces"]
        assert len(set(lengths)) == len(lengths)


TURNED = {
    "ring_gather_product": lambda inputs: ring_gather_product._with_tokens(inputs, lambda r, place: 2 * r - place),
    "ring_product_scatter": lambda inputs: ring_product_scatter._sums(inputs, lambda r, j: r - 2 * j),
}


@pytest.mark.parametrize("name", TURNED)
def test_a_ring_turned_the_wrong_way_is_right_on_two_ranks_and_wrong_on_more(name):
    for case in found(name):
        wrong = TURNED[name](case.inputs)
        differences = [first_difference(*pair) for pair in zip(wrong, case.expected, strict=True)]
        assert (differences == [None] * case.p) == (case.p == 2)


def test_a_piece_may_be_multiplied_in_several_products():
    moments = [Moment(2, 3, 4, ()), Moment(2, 3, 4, ()), Moment(4, 3, 4, ())]
    case = found("ring_gather_product")[0]
    case.outcomes[0].facts["moments"] = moments
    assert [number for number, _ in numbered(case, 0, 48)] == [0, 0, 1]


# E


def timed(**times):
    case = found("ring_gather_product")[-1]
    outcomes = [replace(outcome, facts={"times": times} if times else {}) for outcome in case.outcomes]
    return common.hidden_line([replace(case, outcomes=outcomes)])


def test_e_is_judged_on_gpus_only_and_blocked_elsewhere():
    assert timed().state == BLOCKED and "measured on GPUs only" in timed().text
    good = timed(alone=2.0e-3, serial=3.0e-3, answer=2.2e-3)
    assert good.state == PASSED and good.text.startswith("E = 0.80: product alone 2.00 ms")
    bad = timed(alone=2.0e-3, serial=3.0e-3, answer=3.1e-3)
    assert bad.state == FAILED and bad.text.startswith("E = -0.10")


def test_e_is_blocked_where_the_product_is_too_short_to_hide_anything():
    for times in ({"alone": 1e-3, "serial": 5e-3, "answer": 5e-3}, {"alone": 2e-3, "serial": 1.9e-3, "answer": 3e-3}):
        line = timed(**times)
        assert line.state == BLOCKED and "too short to hide" in line.text


# Answers


@pytest.fixture
def ranks(shared_ranks):
    shared_ranks.run_cell("\n".join(f"globals().pop({name!r}, None)" for name in NAMES))
    ANSWERS.set_up(shared_ranks)
    with shared_ranks.patient(3.0):
        yield shared_ranks


@pytest.mark.parametrize("way", RIGHT)
def test_another_right_way_passes(ranks, way, capsys):
    name, answer = RIGHT[way]
    ranks.run_cell(answer)
    check.exercise(ranks, name)
    assert capsys.readouterr().out.startswith(f"{name}: passed")


@pytest.mark.parametrize("way", AROUND)
def test_a_way_around_a_rule_does_not_pass(ranks, way):
    name, answer, sentence = AROUND[way]
    ranks.run_cell(answer)
    assert sentence in failure(ranks, name)


def test_the_line_of_e_says_blocked_on_a_cpu_and_does_not_fail_the_check(ranks, capsys):
    ranks.run_cell(solution("ordered_backward"))
    check.exercise(ranks, "ordered_backward")
    assert re.search(r"hidden time\s+- E is measured on GPUs only", capsys.readouterr().out)


def test_memory_that_is_read_too_early_is_noticed_though_the_values_are_right(ranks):
    ranks.run_cell(changed("ordered_backward", ("    gathering.wait()\n    dweight = dy.T @ whole\n",
                                                "    dweight = dy.T @ whole\n    gathering.wait()\n")))  # fmt: skip
    text = failure(ranks, "ordered_backward")
    assert "values ✓" in text and "nobody waited for it" in text


def test_fewer_pieces_than_asked_for_are_counted(ranks):
    ranks.run_cell(RIGHT["cut along the weight's rows"][1].replace("chunk(num_pieces)", "chunk(2)"))
    text = failure(ranks, "pieced_product_scatter")
    assert "values ✓" in text and "rank 0 calls reduce_scatter twice; num_pieces = 3 are due" in text


TIMED = """
from tpcourse.check.lesson08.rank_answer import Large, gathered, times

pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
tp = pairs[rank // 2]
x, weight, bias = torch.randn(8, 4), torch.randn(6, 4), torch.randn(6)
whole = gathered(x, tp)
large = Large((x, weight, bias), lambda: whole @ weight.T, lambda: gathered(x, tp) @ weight.T)
found = times(ring_gather_product, tp, large, repeats=2)
"""


def test_the_time_of_an_answer_is_taken_beside_the_product_alone_and_one_after_the_other(ranks):
    ranks.run_cell(solution("ring_gather_product") + TIMED)
    found = ranks["found"]
    assert all(set(row) == {"alone", "serial", "answer"} and min(row.values()) > 0 for row in found)
    rows = [tuple(row.values()) for row in found]
    assert rows[0] == rows[1] and rows[2] == rows[3], "the slowest rank's, on all of a group"


TIMED_ON_A_GPU = """
from tpcourse.check import rank_side
from tpcourse.check.lesson08 import rank_answer

outcome = rank_side.Outcome(device="cuda")
made = {"x": torch.randn(8, 4), "weight": torch.randn(6, 4), "bias": torch.randn(6)}
small = rank_answer.Large((*made.values(),), lambda: None, lambda: None)
probe = lambda: rank_answer.run(ring_gather_product, made, [tp], outcome, lambda tp: small)
rank_side.record(outcome, ring_gather_product, probe, {})
calls, taken = [event.op for event in outcome.events], set(outcome.facts["times"])
"""


def test_the_calls_that_take_the_time_of_an_answer_are_not_counted_as_the_answer_s(ranks):
    ranks.run_cell(solution("ring_gather_product") + TIMED + TIMED_ON_A_GPU)
    assert [sorted(set(calls)) for calls in ranks["calls"]] == [["recv", "send"]] * 4
    assert [len(calls) for calls in ranks["calls"]] == [2] * 4
    assert ranks["taken"] == [{"answer", "alone", "serial"}] * 4


LATE = """
import time
from tpcourse.check.lesson08.rank_answer import Large, times

calls = []
def late(x, tp):
    calls.append(x)
    time.sleep(1 if rank == 0 else 0)  # more than 20 times the other, however late that one wakes up

short = Large((torch.ones(2),), lambda: None, lambda: time.sleep(0.001))
found = times(late, world, short)
"""


def test_an_answer_that_takes_for_ever_is_timed_once_on_all_ranks(ranks):
    ranks.run_cell(LATE)
    assert [len(calls) for calls in ranks["calls"]] == [2] * 4
    assert all(1 <= found["answer"] < 10 for found in ranks["found"])


@pytest.mark.parametrize("name", ["gathered_meanwhile", "ordered_backward", "pieced_product_scatter"])
def test_where_nothing_is_passed_on_no_hint_speaks_of_works_of_pass_on(name):
    assert not any("works that `pass_on`" in m.hint for m in find(name).misconceptions)
