"""`check.same`: results and every gradient against one device; wrong tensors named, with the likely reason."""

from __future__ import annotations

import re

import pytest
import torch

from tpcourse import check, conjugates, reference, wire
from tpcourse.dims import split_sizes

FUNCTIONS = """
import torch.nn.functional as F
from tpcourse import wire
from tpcourse.conjugates import copy_sum, sum_copy

def no_backward(x, group):
    total = x.detach().clone()
    dist.all_reduce(total, group=group)
    return total

class Forgets(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total
    @staticmethod
    def backward(ctx, dy):
        return dy, None

def forgets_backward(x, group):
    return Forgets.apply(x, group)

def averages(x, group):
    return wire.all_reduce(x.detach(), group=group) / dist.get_world_size(group)

def not_written(x, group):
    raise NotImplementedError

def stuck(x, group):
    if dist.get_rank(group) == 0:
        return x
    return wire.all_reduce(x.detach(), group=group)

def row(x, weight, bias, *, tp):
    return sum_copy(F.linear(x, weight), group=tp) + bias

def row_bias_first(x, weight, bias, *, tp):
    return sum_copy(F.linear(x, weight, bias), group=tp)

def row_bias_share(x, weight, bias, *, tp):
    return sum_copy(F.linear(x, weight, bias / dist.get_world_size(tp)), group=tp)

def column(x, weight, bias, *, tp):
    return F.linear(copy_sum(x, group=tp), weight, bias)

def column_no_sum(x, weight, bias, *, tp):
    return F.linear(x, weight, bias)
"""
ROW = {"x": check.split(3, 10, dim=-1), "weight": check.split(7, 10, dim=1), "bias": check.whole(7)}
COLUMN = {"x": check.whole(3, 10), "weight": check.split(7, 10, dim=0), "bias": check.split(7, dim=0)}
ALL = ["y", "dx", "dweight", "dbias"]


@pytest.fixture
def ranks(shared_ranks):
    shared_ranks.run_cell(FUNCTIONS)
    with shared_ranks.patient(3.0):
        yield shared_ranks


def failure(*args, **kwargs):
    with pytest.raises(check.CheckFailed) as caught:
        check.same(*args, **kwargs)
    return re.sub(r"\s+", " ", str(caught.value))


def test_a_right_collective_passes_and_says_so_in_one_block(ranks, capsys):
    check.same(ranks, wire.ring_all_reduce, reference.all_reduce, names=["y"])
    assert capsys.readouterr().out == (
        "ring_all_reduce against all_reduce: passed\n  y              ✓ equal on every rank\n"
    )


def test_a_result_that_is_the_average_is_named(ranks):
    text = failure(ranks, "averages", reference.all_reduce, names=["y"])
    assert "averages against all_reduce: failed y ✗ rank" in text
    assert "largest relative error" in text
    assert "y is divided by p." in text


def test_a_collective_with_the_right_backward_passes(ranks):
    check.same(ranks, conjugates.sum_copy, reference.reduced, make={"x": check.each(4, 3)}, result=check.whole())


def test_a_collective_without_backward_is_named(ranks):
    text = failure(ranks, "no_backward", reference.all_reduce)
    assert "y ✓ equal on every rank" in text
    assert "dx ✗ rank 0 of 2: no gradient arrived" in text
    assert "collectives have no backward" in text


def test_a_gradient_that_lacks_the_other_ranks_share_is_named(ranks):
    text = failure(ranks, "column_no_sum", torch.nn.functional.linear, ALL, make=COLUMN, result=check.split(dim=-1))
    assert "dx is short by the other ranks' share: who sums the gradient in backward?" in text
    assert "dweight ✓" in text


def test_columns_and_rows_pass_with_uneven_splits(ranks):
    linear = torch.nn.functional.linear
    check.same(ranks, "column", linear, ALL, make=COLUMN, result=check.split(dim=-1), calls={"all_reduce": 1})
    check.same(ranks, "row", linear, ALL, make=ROW, result=check.whole(), calls={"all_reduce": 1})


def test_a_bias_added_on_every_rank_is_named(ranks):
    text = failure(ranks, "row_bias_first", torch.nn.functional.linear, ALL, make=ROW, result=check.whole())
    assert "y is too large by (p-1) x bias" in text


def test_a_bias_shared_out_before_the_sum_is_right_in_y_and_wrong_in_its_gradient(ranks):
    text = failure(ranks, "row_bias_share", torch.nn.functional.linear, ALL, make=ROW, result=check.whole())
    assert "y ✓" in text
    assert "dbias ✗" in text


def test_calls_over_the_budget_are_counted(ranks):
    linear, budget = torch.nn.functional.linear, {"all_gather": 1}
    text = failure(ranks, "row", linear, ALL, make=ROW, result=check.whole(), calls=budget)
    assert "communication ✗ rank 0 calls 1 all_reduce; the budget is 1 all_gather" in text


def test_a_function_that_is_not_written_or_stuck_is_said_to_be(ranks):
    assert "not_written is not written yet" in failure(ranks, "not_written", reference.all_reduce)
    assert "never called" in failure(ranks, "stuck", reference.all_reduce, names=["y"])


def test_the_same_comparison_gives_the_same_block_each_time(ranks):
    texts = {failure(ranks, "averages", reference.all_reduce, names=["y"]) for _ in range(2)}
    assert len(texts) == 1


def test_names_that_fit_no_argument_are_a_value_error(ranks):
    with pytest.raises(ValueError, match="each one of dx"):
        check.same(ranks, "averages", reference.all_reduce, names=["y", "dweight"])


def test_layouts_cut_as_the_course_cuts():
    pieces = check.split(7, dim=0).on_ranks(torch.arange(7).numpy(), 3)
    assert [len(piece) for piece in pieces] == split_sizes(7, 3)
