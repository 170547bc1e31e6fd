"""Pairs at work: an MLP with its hidden width F split over the ranks, unevenly, and pairs that are wrong there."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rig import run_ranks
from torch import Tensor
from wire_cases import make

from tpcourse import conjugates as pairs
from tpcourse import wire
from tpcourse.dims import split_range

T, D, WIDTH, OUT = 6, 5, 7, 3


def mlp_on_one_device() -> dict[str, Tensor]:
    x, w1, w2 = (make(i, shape).div(9).requires_grad_() for i, shape in enumerate([(T, D), (D, WIDTH), (WIDTH, OUT)]))
    y = F.gelu(x @ w1) @ w2
    dx, dw1, dw2 = torch.autograd.grad(y, (x, w1, w2), make(9, (T, OUT)))
    return {"y": y, "dx": dx, "dw1": dw1, "dw2": dw2}


def split_mlp(group, enter, leave) -> dict[str, Tensor]:
    start, end = split_range(WIDTH, dist.get_world_size(group), dist.get_rank(group))
    x = make(0, (T, D)).div(9).requires_grad_()
    w1 = make(1, (D, WIDTH)).div(9)[:, start:end].clone().requires_grad_()  # [D, F/p]
    w2 = make(2, (WIDTH, OUT)).div(9)[start:end].clone().requires_grad_()  # [F/p, OUT]
    y = leave(F.gelu(enter(x, group=group) @ w1) @ w2, group=group)
    dx, dw1, dw2 = torch.autograd.grad(y, (x, w1, w2), make(9, (T, OUT)))
    return {"y": y, "dx": dx, "dw1": dw1, "dw2": dw2}


def _wrong_tensors(rank, group, enter, leave):
    """Names of the tensors that differ from the one-device MLP's."""
    expected, found = mlp_on_one_device(), split_mlp(group, enter, leave)
    start, end = split_range(WIDTH, dist.get_world_size(group), rank)
    expected["dw1"], expected["dw2"] = expected["dw1"][:, start:end], expected["dw2"][start:end]
    return [name for name in expected if not torch.allclose(found[name], expected[name], rtol=1e-12, atol=1e-12)]


def keep(x, *, group):
    """No collective at all: what is left when the sum of backward is forgotten."""
    return x


class SumSum(torch.autograd.Function):
    """All-reduce both ways: the adjoint of a sum into p different tensors, not into one replicated tensor."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return wire.all_reduce(x, group=group)

    @staticmethod
    def backward(ctx, dy):
        return wire.all_reduce(dy, group=ctx.group), None


def sum_sum(x, *, group):
    return SumSum.apply(x, group)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_an_mlp_split_by_columns_and_rows_is_the_one_device_mlp(p):
    assert run_ranks(_wrong_tensors, p, pairs.copy_sum, pairs.sum_copy) == [[]] * p


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_forgotten_sum_in_backward_leaves_y_right_and_dx_wrong(p):
    assert run_ranks(_wrong_tensors, p, keep, pairs.sum_copy) == [["dx"]] * p


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_sum_of_the_gradient_where_it_is_replicated_makes_all_gradients_wrong(p):
    assert run_ranks(_wrong_tensors, p, pairs.copy_sum, sum_sum) == [["dx", "dw1", "dw2"]] * p


def gather_rows(shard, *, group):
    """Enter and leave with rows of x split over the ranks (6 rows on 4 ranks: 2, 2, 1, 1)."""
    return pairs.gather_scatter_sum(shard, group=group, dim=0, sizes=_rows(group))


def gather_rows_without_sum(shard, *, group):
    return pairs.gather_split(shard, group=group, dim=0, sizes=_rows(group))


def _rows(group):
    p = dist.get_world_size(group)
    return [end - start for start, end in (split_range(T, p, r) for r in range(p))]


def _wrong_rows(rank, group, enter):
    """The same MLP with x and y split by rows, as in sequence parallelism."""
    expected, p = mlp_on_one_device(), dist.get_world_size(group)
    first, last = split_range(T, p, rank)
    start, end = split_range(WIDTH, p, rank)
    x = make(0, (T, D)).div(9)[first:last].clone().requires_grad_()  # [T/p, D]
    w1, w2 = make(1, (D, WIDTH)).div(9)[:, start:end], make(2, (WIDTH, OUT)).div(9)[start:end]
    y = pairs.scatter_sum_gather(F.gelu(enter(x, group=group) @ w1) @ w2, group=group, dim=0)
    (dx,) = torch.autograd.grad(y, x, make(9, (T, OUT))[first:last])
    results = {"y": y, "dx": dx}
    return [k for k, v in results.items() if not torch.allclose(v, expected[k][first:last], rtol=1e-12, atol=1e-12)]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_an_mlp_entered_and_left_by_rows_is_the_one_device_mlp(p):
    assert run_ranks(_wrong_rows, p, gather_rows) == [[]] * p


@pytest.mark.parametrize("p", [2, 3, 4])
def test_gather_and_split_is_the_wrong_pair_where_the_work_differs(p):
    assert run_ranks(_wrong_rows, p, gather_rows_without_sum) == [["dx"]] * p
