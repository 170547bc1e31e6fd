"""Columns and rows: every value and every gradient is that of one device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from ledger_help import fresh_ledger
from linear_cases import NAMES, TIGHT, B, D, draw, errors, gradients, layouts, pieces, shapes, shard
from rig import run_ranks

from tpcourse.ledger import ledger
from tpcourse.linear import column_linear, gather_columns, row_linear


def _apart(rank, group, cases):
    """How many cases there are, and which of their tensors are not those of one device."""
    found = {name: errors(group, **case) for name, case in cases()}
    return len(found), {
        f"{name}: {tensor}": error for name, one in found.items() for tensor, error in one.items() if not error < TIGHT
    }


@pytest.mark.parametrize("p", [2, 3, 4])
def test_an_mlp_of_a_column_and_a_row_is_the_one_device_mlp_in_both_pairs_with_all_gradients(p):
    assert run_ranks(_apart, p, layouts) == [(20, {})] * p


@pytest.mark.parametrize("p", [2, 3, 4])
def test_x_may_have_any_number_of_dims_and_any_strides_and_a_rank_may_have_nothing(p):
    assert run_ranks(_apart, p, shapes) == [(13, {})] * p


def _strided_gradient(rank, group):
    """dy transposed, and dy expanded from one number: what a transpose or a sum above gives back."""
    found = []
    for more in ({}, {"sequence_dim": 1}):
        x, w1, b1, w2, b2 = pieces(group, draw(0, B, 8, D), **more)
        hidden = draw(5, B, 8, w2.shape[1]).requires_grad_()
        for linear, inputs in ((column_linear, (x, w1, b1)), (row_linear, (hidden, w2, b2))):
            y = linear(*inputs, tp=group, **more)
            strided = draw(6, *reversed(y.shape)).permute(2, 1, 0)
            for dy in (strided, torch.tensor(3.0, dtype=torch.float64).expand(y.shape)):
                got = torch.autograd.grad(y, inputs, dy, retain_graph=True)
                expected = torch.autograd.grad(y, inputs, dy.contiguous(), retain_graph=True)
                found += [torch.allclose(a, b, rtol=TIGHT, atol=TIGHT) for a, b in zip(got, expected, strict=True)]
    return found


def test_the_gradient_of_y_may_have_any_strides():
    assert run_ranks(_strided_gradient, 2) == [[True] * 24] * 2


def _frozen(rank, group):
    """The gradients when only some tensors require one: equal to those when all do."""
    found = []
    for sequence_dim in (None, 1):
        x = draw(0, B, 9, D)
        more = {} if sequence_dim is None else {"sequence_dim": 1, "num_tokens": 9, "regather": True}
        rows = {} if sequence_dim is None else {"sequence_dim": 1}
        everything = dict(zip(NAMES[1:], _some(group, x, range(5), sequence_dim, more, rows), strict=True))
        for wanted in ([0], [1], [2], [3], [4], [1, 2], [0, 3]):
            got = _some(group, x, wanted, sequence_dim, more, rows)
            found += [torch.equal(g, everything[NAMES[1 + at]]) for g, at in zip(got, wanted, strict=True)]
    return found


def _some(group, x, wanted, sequence_dim, more, rows):
    tensors = [t.requires_grad_(at in wanted) for at, t in enumerate(pieces(group, x, sequence_dim=sequence_dim))]
    y = row_linear(F.gelu(column_linear(*tensors[:3], tp=group, **more)), *tensors[3:], tp=group, **rows)
    return gradients(y, [tensors[at] for at in wanted])


def test_any_of_x_weights_and_biases_may_be_frozen():
    assert run_ranks(_frozen, 2) == [[True] * 18] * 2


def _twice(rank, group):
    found = []
    for sequence_dim in (None, 1):
        x, w1, b1, *_ = pieces(group, draw(0, B, 8, D), sequence_dim=sequence_dim)
        y = column_linear(x, w1, b1, tp=group, sequence_dim=sequence_dim)
        z = row_linear(y, w1.detach().T, None, tp=group, sequence_dim=sequence_dim)
        (dx,) = torch.autograd.grad((y * y).sum() + (z * z).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            dx.sum().backward()
        found.append(True)
    return found


def test_a_second_derivative_is_refused_and_not_wrong():
    assert run_ranks(_twice, 2) == [[True, True]] * 2


def _alone():
    x, w1, b1 = draw(0, B, 9, D), draw(1, 4, D), draw(2, 4)
    with fresh_ledger(), ledger() as log:
        columns = column_linear(x, w1, b1, tp=None, sequence_dim=1, regather=True)
        rows = row_linear(x, w1, b1, tp=None, sequence_dim=1)
        whole = gather_columns(columns, tp=None)
    return log.num_calls, [torch.equal(y, F.linear(x, w1, b1)) for y in (columns, rows, whole)]


def test_without_a_group_it_is_torch_s_own_linear_and_nothing_is_sent():
    assert _alone() == (0, [True] * 3)


def _gathered(rank, group):
    """A column product alone, whole at its end: y, dx, dw and db."""
    x, weight, bias = draw(0, B, 9, D), draw(1, 13, D), draw(2, 13)
    whole = [t.clone().requires_grad_() for t in (x, weight, bias)]
    y = F.linear(*whole)
    expected = [y, *gradients(y, whole)]
    mine = [shard(group, t, dim).clone().requires_grad_() for t, dim in ((x, None), (weight, 0), (bias, 0))]
    sizes = [len(piece) for piece in bias.tensor_split(group.size())]
    y = gather_columns(column_linear(*mine, tp=group), tp=group, sizes=sizes)
    found = [y, *gradients(y, mine)]
    cuts = (None, None, 0, 0)
    pairs = zip(found, (shard(group, t, dim) for t, dim in zip(expected, cuts, strict=True)), strict=True)
    return [torch.allclose(a, b, rtol=TIGHT, atol=TIGHT) for a, b in pairs]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_gathered_columns_are_the_whole_product_on_every_rank_with_all_gradients(p):
    assert run_ranks(_gathered, p) == [[True] * 4] * p
