"""What columns and rows send, when, and what they keep for backward."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from ledger_help import fresh_ledger
from linear_cases import OUT, B, D, draw, gradients, pieces
from program_order import in_order
from rig import run_ranks

from tpcourse import memory
from tpcourse.ledger import ledger
from tpcourse.linear import column_linear, row_linear

T = 12
TOKENS = {"sequence_dim": 1, "num_tokens": T}
REPLICATED, SPLIT, REGATHERED = {}, TOKENS, {**TOKENS, "regather": True}


def mlp(tensors, group, options):
    """y of a column and a row."""
    more = {"sequence_dim": 1} if options else {}
    return row_linear(F.gelu(column_linear(*tensors[:3], tp=group, **options)), *tensors[3:], tp=group, **more)


def _calls(rank, group, options, frozen=False):
    """The calls of forward and of backward, and the bytes of both."""
    tensors = pieces(group, draw(0, B, T, D), sequence_dim=options.get("sequence_dim"))
    tensors[0].requires_grad_(not frozen)
    with fresh_ledger():
        with ledger() as forward:
            y = mlp(tensors, group, options)
        with ledger() as backward:
            gradients(y, tensors[frozen:])
    ops = [Counter(event.op for event in log.events) for log in (forward, backward)]
    return *map(dict, ops), forward.bytes_sent + backward.bytes_sent


def whole_bytes(width: int) -> int:
    return B * T * width * 8


@pytest.mark.parametrize("p", [2, 3, 4])
def test_an_mlp_takes_one_all_reduce_forward_and_one_backward(p):
    sent = 2 * (p - 1) * (whole_bytes(OUT) + whole_bytes(D)) // p
    assert run_ranks(_calls, p, REPLICATED) == [({"all_reduce": 1}, {"all_reduce": 1}, sent)] * p


@pytest.mark.parametrize("p", [2, 3, 4])
def test_with_split_tokens_it_takes_one_all_gather_and_one_reduce_scatter_each_way_and_the_same_bytes(p):
    pair = {"all_gather": 1, "reduce_scatter": 1}
    (_, _, sent), *_ = run_ranks(_calls, p, REPLICATED)
    assert run_ranks(_calls, p, SPLIT) == [(pair, pair, sent)] * p


@pytest.mark.parametrize("p", [2, 3, 4])
def test_to_regather_adds_exactly_one_all_gather_of_x_to_backward(p):
    (forward, backward, sent), *_ = run_ranks(_calls, p, SPLIT)
    expected = forward, {**backward, "all_gather": 2}, sent + (p - 1) * whole_bytes(D) // p
    assert run_ranks(_calls, p, REGATHERED) == [expected] * p


@pytest.mark.parametrize(
    ("options", "backward"),
    [(REPLICATED, {}), (SPLIT, {"all_gather": 1}), (REGATHERED, {"all_gather": 2})],
)
def test_an_x_that_needs_no_gradient_costs_no_call_for_it(options, backward):
    found = run_ranks(_calls, 2, options, True)
    assert [calls[1] for calls in found] == [backward] * 2


def _order(rank, group, kernel, options):
    """What backward of one kernel does, in order, with its waits."""
    x, w1, b1, w2, b2 = pieces(group, draw(0, B, T, D), sequence_dim=options.get("sequence_dim"))
    if kernel == "column":
        tensors = x, w1, b1
        y = column_linear(*tensors, tp=group, **options)
    else:
        tensors = draw(5, B, T, w2.shape[1]).requires_grad_(), w2, b2
        y = row_linear(*tensors, tp=group, sequence_dim=options.get("sequence_dim"))
    return in_order(lambda: torch.autograd.grad(y, tensors, torch.ones_like(y)), ("mm", "addmm", "sum"))


@pytest.mark.parametrize(
    ("kernel", "options", "order"),
    [
        ("column", REPLICATED, "mm all-reduce mm sum wait"),
        ("column", SPLIT, "mm scatter-sum mm sum wait"),
        ("column", REGATHERED, "all-gather mm scatter-sum wait mm sum wait"),
        ("row", REPLICATED, "mm mm sum"),
        ("row", SPLIT, "all-gather sum wait mm mm"),
    ],
)
def test_backward_waits_for_a_collective_only_after_the_product_that_hides_it(kernel, options, order):
    assert run_ranks(_order, 2, kernel, options) == [order.split()] * 2


def _kept(rank, group):
    """Bytes that a column and a row keep for backward, beside the weights."""
    found = []
    for options in (REPLICATED, SPLIT, REGATHERED):
        more = {"sequence_dim": options.get("sequence_dim")}
        x, w1, b1, w2, b2 = weights = pieces(group, draw(0, B, T, D), **more)
        hidden = draw(5, B, T, w2.shape[1]).requires_grad_()
        column = memory.saved(column_linear, x, w1, b1, tp=group, parameters=weights[1:], **options)
        row = memory.saved(row_linear, hidden, w2, b2, tp=group, parameters=weights[1:], **more)
        assert row.bytes == hidden.nbytes
        found.append(column.bytes)
    frozen = memory.saved(column_linear, x, w1.requires_grad_(False), b1, tp=group, parameters=weights[1:], **TOKENS)
    return found, frozen.bytes


@pytest.mark.parametrize("p", [2, 4])
def test_a_column_keeps_its_input_whole_and_to_regather_only_this_rank_s_piece_and_nothing_for_a_frozen_weight(p):
    whole = whole_bytes(D)
    assert run_ranks(_kept, p) == [([whole, whole, whole // p], 0)] * p
