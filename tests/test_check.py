"""The parts of a check that need no ranks: verdicts, comparison, budgets, predictions."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from tpcourse import check, reference
from tpcourse.check.axes import judge
from tpcourse.check.budget import Budget, first_fault
from tpcourse.check.clues import Wrong, clue
from tpcourse.check.compare import first_difference
from tpcourse.check.evidence import RETURNED, Case, Evidence, Outcome
from tpcourse.check.report import BLOCKED, FAILED, PASSED, Line, Verdict
from tpcourse.check.runner import LESSONS, find
from tpcourse.ledger import Event, Log

PASS = Line("values", PASSED, "right")


def test_a_verdict_without_a_judged_line_is_failed():
    assert Verdict("x").state == "failed"
    assert Verdict("x", [Line("hidden time", BLOCKED, "needs a GPU")]).state == "failed"


def test_a_blocked_axis_does_not_fail_a_check_and_is_shown(capsys):
    Verdict("x", [PASS, Line("hidden time", BLOCKED, "needs a GPU")]).conclude()
    assert capsys.readouterr().out == "x: passed\n  values         ✓ right\n  hidden time    - needs a GPU\n"


def test_a_failed_verdict_raises_its_block_and_prints_nothing(capsys):
    verdict = Verdict("x", [PASS, Line("communication", FAILED, "too much")], why="because", hint="do this")
    with pytest.raises(check.CheckFailed) as caught:
        verdict.conclude()
    assert str(caught.value).splitlines()[0] == "x: failed"
    assert caught.value._render_traceback_() == str(verdict).splitlines()
    assert capsys.readouterr().out == ""


def test_a_failed_check_travels_between_processes():
    again = pickle.loads(pickle.dumps(check.CheckFailed("x: not started", "not started")))
    assert (str(again), again.state) == ("x: not started", "not started")


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (None, "nothing was returned"),
        (3.0, "a tensor was expected, not float 3.0"),
        (np.zeros((2, 3)), r"shape [2, 3] instead of [6]"),
        (np.array([1.0, 2, 3, 4, 5, 12]), "largest relative error 1, 1 of 6 elements, first at element 5"),
        (np.array([np.nan, 2, 3, 4, 5, 6]), "1 of 6 elements, first at element 0"),
    ],
)
def test_a_difference_says_what_differs(got, words):
    assert words in str(first_difference(got, np.arange(1.0, 7)))


def test_rounding_is_no_difference_and_single_precision_is():
    right = np.array([1 / 3, 0.1, 2 / 3])
    assert first_difference(right * (1 + 1e-14), right) is None
    assert first_difference(right.astype(np.float32).astype(np.float64), right) is not None


def test_a_list_is_compared_entry_by_entry():
    right = [np.ones(2), np.ones(3)]
    assert first_difference(right, right) is None
    assert "entry 1: shape [2] instead of [3]" in str(first_difference([right[0], right[0]], right))
    assert "1 tensors instead of 2" in str(first_difference(right[:1], right))


def event(rank, op, peer, count=2, group=(0, 1, 2), begin=0.0, waited=None, axis="group 0,1,2"):
    num_bytes = 8 * count
    sent, received = (num_bytes, 0) if op == "send" else (0, num_bytes)
    return Event(
        rank=rank, seq=1, op=op, axis=axis, group=group, peer=peer, shape=(count,), dtype="float64", numel=count,
        offset=0, splits=None, reduction=None, bytes_sent=sent, bytes_received=received, is_async=False,
        begin_s=begin, end_s=None, line="line 1", function="f", waited_s=waited,
    )  # fmt: skip


def evidence(events):
    outcomes = [Outcome(state=RETURNED, result=np.ones(1), log=Log(of_rank)) for of_rank in events]
    case = Case((0, 1, 2), {"group": ((0, 1, 2),)})
    return Evidence(case, [{}] * 3, [np.ones(1)] * 3, outcomes)


def ring(turn=1, op="send", **changes):
    return [[event(r, op, (r + turn) % 3, **changes), event(r, "recv", (r - turn) % 3, begin=1.0)] for r in range(3)]


EXACT = Budget(sent=(16,) * 3, received=(16,) * 3, messages=(1,) * 3, total=3, ring=True)


@pytest.mark.parametrize("turn", [1, -1])
def test_a_ring_within_its_budget_has_no_fault_in_either_direction(turn):
    assert first_fault(evidence(ring(turn)), EXACT) is None


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        (ring(op="all_reduce"), "collective"),
        (ring(group=(0, 1, 2, 3), axis="world"), "group"),
        (ring(count=3), "bytes"),
        ([[], [], []], "silence"),
        (ring(waited=0.5), "sends first"),
        ([[event(0, "send", 1, count=1), event(0, "send", 1, count=1), event(0, "recv", 2)], *ring()[1:]], "messages"),
        ([[event(0, "send", 1), event(0, "recv", 2)], [event(1, "send", 0), event(1, "recv", 2)], ring()[2]], "ring"),
    ],
)
def test_each_rule_of_a_budget_finds_its_fault(events, kind):
    fault = first_fault(evidence(events), EXACT)
    assert fault is not None
    assert fault.kind == kind


def test_a_third_axis_is_one_more_line_and_may_be_blocked():
    spec = dataclasses.replace(
        find("ring_all_gather"),
        budget=lambda case, inputs: EXACT,
        third=lambda cases: Line("hidden time", BLOCKED, "needs a GPU"),
    )
    verdict = judge(spec, [evidence(ring())])
    assert verdict.state == "passed"
    assert str(verdict).splitlines()[-1] == "  hidden time    - needs a GPU"
    spec = dataclasses.replace(spec, third=lambda cases: Line("bytes held", FAILED, "96 bytes, the budget is 64"))
    assert judge(spec, [evidence(ring())]).state == "failed"


def tensors(inputs, name):
    return [torch.from_numpy(given[name]) for given in inputs]


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("ring_all_gather", lambda case, inputs: reference.all_gather(tensors(inputs, "piece"))),
        ("ring_reduce_scatter", lambda case, inputs: reference.reduce_scatter(tensors(inputs, "x"))),
        ("ring_all_reduce", lambda case, inputs: reference.all_reduce(tensors(inputs, "x"))),
        ("tree_broadcast", lambda case, inputs: reference.broadcast(tensors(inputs, "x"), case.sizes["root"])),
        (
            "pairwise_all_to_all",
            lambda case, inputs: reference.all_to_all(
                [torch.from_numpy(np.concatenate(given["pieces"])) for given in inputs],
                [[len(piece) for piece in given["pieces"]] for given in inputs],
            ),
        ),
    ],
)
def test_the_expected_values_of_an_exercise_are_those_of_the_one_device_reference(name, answer):
    spec = find(name)
    for case in spec.cases(4):
        inputs = spec.make(case, np.random.default_rng(1))
        for ours, theirs in zip(spec.expected(case, inputs), answer(case, inputs), strict=True):
            joined = np.concatenate(ours) if isinstance(ours, list) else ours
            np.testing.assert_allclose(joined, theirs.numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", LESSONS)
def test_inputs_are_not_zero_and_differ_between_ranks_and_runs(name):
    spec = find(name)
    for case in spec.cases(4):
        draws = [spec.make(case, np.random.default_rng(seed)) for seed in (1, 2)]
        drawn = [v[np.isfinite(v)] for given in draws[0] + draws[1] for v in flat(given.values())]  # padding may be NaN
        values = [v for v in drawn if v.size]
        assert all(np.abs(value).min() >= 0.5 for value in values)
        assert len({value.tobytes() for value in values}) == len(values)


def flat(values):
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, list) and isinstance(value[0], np.ndarray):
            yield from value


@pytest.mark.parametrize("name", LESSONS)
def test_cases_use_two_three_and_four_ranks_and_groups_that_are_not_the_first_ranks(name):
    assert {case.p for case in find(name).cases(8)} == {2, 3, 4}
    assert {case.p for case in find(name).cases(2)} == {2}
    assert any(case.members[0] > 0 for case in find(name).cases(4))


def test_an_unknown_exercise_is_a_value_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="ring_all_gather, ring_reduce_scatter"):
        find("ring_gather")


@pytest.mark.parametrize(
    ("guess", "answer", "words"),
    [
        (..., 4, "The answer is 4. You made no guess"),
        (4, 4, "as you guessed"),
        ((2, 3), torch.Size([2, 3]), "as you guessed"),
        (3.1, 3.0, "You guessed 3.1; the answer is 3.0."),
        ("No ", "no", "as you guessed"),
        (True, 1, "as you guessed"),
        (None, 4, "You guessed None"),
    ],
)
def test_a_prediction_is_answered_and_never_graded(guess, answer, words, capsys):
    check.prediction(guess, answer)
    assert words in capsys.readouterr().out


def test_a_prediction_may_be_near(capsys):
    check.prediction(3.1, 3.0, tolerance=0.1)
    assert "as you guessed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("got", "is_gradient", "words"),
    [
        ([2.0 * np.ones(3)] * 2, False, "p times too large"),
        ([0.5 * np.ones(3)] * 2, True, "divided by p"),
        ([0.25 * np.ones(3), 0.75 * np.ones(3)], True, "short by the other ranks' share"),
        ([0.25 * np.ones(3), 0.75 * np.ones(3)], False, "is partial"),
        ([None, None], True, "have no backward"),
        ([np.ones(3) + np.arange(3)] * 2, False, "too large by (p-1) x bias"),
        ([np.ones(2)] * 2, False, ""),
    ],
)
def test_a_clue_recomputes_what_the_wrong_algorithm_gives(got, is_gradient, words):
    wrong = Wrong("y", got, [np.ones(3)] * 2, {"bias": np.arange(3.0)}, is_gradient)
    assert words in clue(wrong)
    assert bool(clue(wrong)) == bool(words)
