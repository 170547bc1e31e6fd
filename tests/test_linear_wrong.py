"""Columns and rows with one mistake do not pass: which tensors notice which."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from linear_cases import OUT, TIGHT, B, D, draw, errors, on_one_device, on_ranks, pieces
from rig import run_ranks

from tpcourse import conjugates as pairs
from tpcourse.linear import row_linear

NOTICED = 1e-2
COLUMNS = {"y": ("y",), "dx": ("dx",), "dW": ("dw1", "dw2"), "db": ("db1", "db2")}
"""A column of the table -> the tensors that it is the worst of."""


def forgets_the_sum(x, weight, bias, *, tp):
    return F.linear(x, weight, bias)


def adds_the_bias_first(x, weight, bias, *, tp):
    return pairs.sum_copy(F.linear(x, weight, bias), group=tp)


def divides_the_bias(x, weight, bias, *, tp):
    return pairs.sum_copy(F.linear(x, weight, bias / tp.size()), group=tp)


KERNELS = {
    "right": {},
    "backward all-reduce forgotten": {"column": forgets_the_sum},
    "bias before the sum": {"row": adds_the_bias_first},
    "bias/p before the sum": {"row": divides_the_bias},
}


def _table(rank, group):
    """Row of the table -> column -> error."""
    x = draw(0, B, 9, D)
    return {name: _row(errors(group, x, **wrong)) for name, wrong in KERNELS.items()}


def _row(apart):
    return {column: max(apart[name] for name in names) for column, names in COLUMNS.items()}


def _worst(p):
    """The table with the largest error of all ranks."""
    tables = run_ranks(_table, p)
    return {name: {of: max(t[name][of] for t in tables) for of in COLUMNS} for name in KERNELS}


@pytest.mark.parametrize("p", [2, 3, 4])
def test_each_wrong_kernel_leaves_its_own_tensors_wrong_and_the_others_exact(p):
    table = _worst(p)
    wrong = {name: [of for of, error in row.items() if error > NOTICED] for name, row in table.items()}
    assert wrong == {
        "right": [],
        "backward all-reduce forgotten": ["dx"],
        "bias before the sum": ["y", "dx", "dW", "db"],
        "bias/p before the sum": ["db"],
    }
    assert all(error < TIGHT for row in table.values() for error in row.values() if error <= NOTICED)
    assert table["bias/p before the sum"]["db"] == pytest.approx(1 - 1 / p)


def _surplus(rank, group):
    """What a bias before the sum adds to y, over that bias."""
    x = draw(0, B, 9, D)
    y = on_ranks(group, x, row=adds_the_bias_first)["y"]
    bias = draw(4, OUT)
    return ((y - on_one_device(x)["y"]) / bias).mean().item()


@pytest.mark.parametrize("p", [2, 4])
def test_a_bias_before_the_sum_is_p_minus_1_times_too_many(p):
    assert run_ranks(_surplus, p) == [pytest.approx(p - 1)] * p


def _in_bfloat16(rank, group):
    return _row(errors(group, draw(0, B, 9, D), to=torch.bfloat16))


def test_in_bfloat16_the_right_kernel_is_off_by_more_than_a_small_mistake_would_make():
    for apart in run_ranks(_in_bfloat16, 4):
        assert all(1e-3 < error < 5e-2 for error in apart.values()), apart


def gathers_without_a_sum(x, weight, bias, *, tp, sequence_dim, num_tokens):
    whole = pairs.gather_split(x, group=tp, dim=sequence_dim)
    return F.linear(whole, weight, bias)


def scatters_the_bias_too(x, weight, bias, *, tp, sequence_dim):
    return pairs.scatter_sum_gather(F.linear(x, weight, bias), group=tp, dim=sequence_dim)


def _split_tokens(rank, group, wrong):
    apart = errors(group, draw(0, B, 12, D), sequence_dim=1, **wrong)
    return [name for name, error in apart.items() if error > NOTICED]


@pytest.mark.parametrize(
    ("wrong", "noticed"),
    [
        ({}, []),
        ({"column": gathers_without_a_sum}, ["dx"]),
        ({"row": scatters_the_bias_too}, ["y", "dx", "dw1", "db1", "dw2", "db2"]),
    ],
)
def test_with_split_tokens_a_missing_sum_and_a_bias_before_it_are_noticed(wrong, noticed):
    assert run_ranks(_split_tokens, 4, wrong) == [noticed] * 4


def _own_tokens(rank, group):
    """Whether the gradient of a row's bias is dy over this rank's tokens, and whether it is dy over all tokens."""
    *_, w2, b2 = pieces(group, draw(0, B, 9, D), sequence_dim=1)
    y = row_linear(draw(5, B, 9, w2.shape[1]), w2, b2, tp=group, sequence_dim=1)
    dy = draw(6, B, 9, OUT)
    mine = dy.tensor_split(group.size(), 1)[rank]
    (db,) = torch.autograd.grad(y, b2, mine)
    return torch.allclose(db, mine.sum((0, 1))), torch.allclose(db, dy.sum((0, 1)))


def test_the_gradient_of_a_row_s_bias_is_partial_where_tokens_are_split():
    assert run_ranks(_own_tokens, 4) == [(True, False)] * 4
