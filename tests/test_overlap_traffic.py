"""What the forms send, in which order beside the products, and what they keep; linear takes them by one argument."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ledger_help import fresh_ledger
from linear_cases import TIGHT, draw, errors, pieces
from overlap_cases import KERNELS
from program_order import in_order
from rig import run_ranks

from tpcourse import memory
from tpcourse.ledger import ledger
from tpcourse.linear import column_linear, row_linear
from tpcourse.overlap import gather_product, product_scatter

B, T, D, N = 1, 12, 5, 4
FORMS = ("serial", "ring", "popular")
GATHER_X, SCATTER_Y = B * T * D * 8, B * T * N * 8
"""Bytes of what is gathered, and of what is scattered: x [B, T, D] -> [B, T, N] in float64."""


def _leaves(group, kind):
    tokens = T // group.size() if kind == "gather" else T
    return [draw(seed, *shape).requires_grad_() for seed, shape in enumerate(([B, tokens, D], [N, D], [N]))]


def _calls(rank, group, kind, form):
    """The calls and bytes of forward, and of backward."""
    leaves = _leaves(group, kind)
    with fresh_ledger():
        with ledger() as forward:
            y = KERNELS[kind](*leaves, tp=group, form=form)
        with ledger() as backward:
            torch.autograd.grad(y, leaves, torch.ones_like(y))
    return [(dict(Counter(event.op for event in log.events)), log.bytes_sent) for log in (forward, backward)]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_every_form_sends_the_bytes_of_serial_and_backward_is_the_other_kernel(p):
    """Popular's reduces count as a whole array from all ranks but the one they go to: the same bytes."""
    once, twice = {"send": p - 1, "recv": p - 1}, {"send": 2 * (p - 1), "recv": 2 * (p - 1)}
    sums = {"serial": {"reduce_scatter": 1}, "ring": twice, "popular": {"reduce": p}}
    forward = {
        "gather": {"serial": {"all_gather": 1}, "ring": once, "popular": once},
        "scatter": sums,
    }
    backward = {
        "gather": {**sums, "ring": once if p == 2 else twice},  # other work hides the only way: 1 piece
        "scatter": {"serial": {"all_gather": 1}, "ring": once, "popular": once},
    }
    sent = {"gather": GATHER_X * (p - 1) // p, "scatter": SCATTER_Y * (p - 1) // p}
    for kind in KERNELS:
        for form in FORMS:
            expected = [(forward[kind][form], sent[kind]), (backward[kind][form], sent[kind])]
            assert run_ranks(_calls, p, kind, form) == [expected] * p, (kind, form)


def program(run) -> str:
    """What `run` does, in order, with its waits."""
    return " ".join(in_order(run, ("mm", "addmm", "add", "sum", "bmm", "cat")))


def _order(rank, group, kind, form, is_backward, options):
    x, weight, _ = _leaves(group, kind)
    if not is_backward:
        return program(lambda: KERNELS[kind](x, weight, tp=group, form=form, **options))
    y = KERNELS[kind](x, weight, tp=group, form=form, **options)
    return program(lambda: torch.autograd.grad(y, (x, weight), torch.ones_like(y)))


FORWARD, BACKWARD = False, True


@pytest.mark.parametrize(
    ("p", "kind", "form", "is_backward", "order"),
    [
        (2, "gather", "serial", FORWARD, "all-gather wait mm"),
        (2, "gather", "ring", FORWARD, "send recv mm wait wait mm"),
        (3, "gather", "ring", FORWARD, "send recv mm wait wait send recv mm wait wait mm"),
        (2, "gather", "popular", FORWARD, "mm send recv wait wait mm"),
        (2, "scatter", "serial", FORWARD, "mm scatter-sum wait"),
        (2, "scatter", "ring", FORWARD, "mm send recv mm send recv wait wait addmm wait wait addmm"),
        (2, "scatter", "popular", FORWARD, "mm reduce mm reduce wait wait"),
        (2, "gather", "serial", BACKWARD, "mm scatter-sum mm wait"),
        (2, "scatter", "serial", BACKWARD, "all-gather wait mm mm"),
        (2, "gather", "ring", BACKWARD, "mm send recv mm addmm wait wait addmm"),
        (3, "gather", "ring", BACKWARD, "mm send recv mm send recv mm addmm addmm" + 2 * " wait wait addmm send recv"
         + 2 * " wait wait addmm"),
        (2, "scatter", "ring", BACKWARD, "send recv mm mm wait wait mm addmm"),
        (2, "gather", "popular", BACKWARD, "mm reduce mm reduce wait wait mm addmm"),
    ],
)
def test_a_message_begins_before_the_product_that_hides_it_and_popular_s_only_behind_it(
    p, kind, form, is_backward, order
):
    assert run_ranks(_order, p, kind, form, is_backward, {}) == [order] * p


def test_to_gather_again_in_backward_is_hidden_under_the_product_for_dx():
    orders = {
        "serial": "all-gather mm scatter-sum wait mm wait",
        "ring": "send recv mm send recv mm wait wait addmm wait wait addmm",  # dx, dW, dW, dx
    }
    for form, order in orders.items():
        assert run_ranks(_order, 2, "gather", form, BACKWARD, {"regather": True}) == [order] * 2


def test_one_piece_leaves_the_sum_nothing_to_hide_under():
    assert run_ranks(_order, 2, "scatter", "ring", FORWARD, {"pieces": 1}) == ["mm send recv wait wait addmm"] * 2


def _frozen(rank, group):
    x, weight = draw(0, B, T // 2, D).requires_grad_(), draw(1, N, D)
    y = gather_product(x, weight, tp=group, form="ring")
    return program(lambda: torch.autograd.grad(y, x, torch.ones_like(y)))


def test_with_a_frozen_weight_the_scatter_sum_is_hidden_under_its_own_product():
    assert run_ranks(_frozen, 2) == ["mm send recv mm send recv wait wait addmm wait wait addmm"] * 2


def _kept(rank, group):
    """Bytes kept for backward beside the weights: gathered, to be gathered again, scattered; and frozen."""
    found = []
    for form in FORMS:
        x, weight, _ = _leaves(group, "gather")
        whole = _leaves(group, "scatter")[0]
        for options in ({}, {"regather": True}):
            found.append(memory.saved(gather_product, x, weight, tp=group, form=form, parameters=[weight], **options))
        found.append(memory.saved(product_scatter, whole, weight, tp=group, form=form, parameters=[weight]))
        still = weight.detach()
        found.append(memory.saved(gather_product, x, still, tp=group, form=form, parameters=[still]))
    return [saved.bytes for saved in found]


@pytest.mark.parametrize("p", [2, 4])
def test_every_form_keeps_for_backward_what_serial_keeps(p):
    assert run_ranks(_kept, p) == [[GATHER_X, GATHER_X // p, GATHER_X, 0] * 3] * p


def _linear(rank, group):
    """The MLP of a column and a row, with each form: which tensors are not those of one device."""
    wrong = []
    for form in (*FORMS, "auto"):
        column, row = _with(column_linear, form), _with(row_linear, form)
        for regather in (False, True):
            apart = errors(group, draw(0, 2, 9, 5), sequence_dim=1, column=column, row=row, regather=regather)
            wrong += [f"{form}: {name}" for name, error in apart.items() if not error < TIGHT]
    return wrong


def _with(linear, form):
    return lambda *args, **options: linear(*args, overlap=form, **options)


@pytest.mark.parametrize("p", [2, 3])
def test_linear_takes_any_form_by_one_argument(p):
    assert run_ranks(_linear, p) == [[]] * p


def _refused(rank, group):
    x, w1, b1, *_ = pieces(group, draw(0, 2, 8, 5))
    said = []
    for linear, inputs in ((column_linear, (x, w1, b1)), (row_linear, (x, w1, b1))):
        with fresh_ledger(), ledger() as log, pytest.raises(ValueError, match="no tokens are gathered") as error:
            linear(*inputs, tp=group, overlap="ring")
        said.append("overlap = 'ring'" in str(error.value) and log.num_calls == 0)
    return said


def test_linear_refuses_a_form_where_no_tokens_travel():
    assert run_ranks(_refused, 2) == [[True, True]] * 2


def turned_the_wrong_way(rank, group, x, weight):
    """A ring that expects the pieces of the right neighbour from the left: right at 2 ranks, wrong at 4."""
    p, outs, now = group.size(), {}, x.detach()
    for step in range(p):
        outs[(rank + step) % p] = F.linear(now, weight)  # right would be rank - step
        coming = torch.empty_like(now)
        to, from_ = ((rank + way) % p for way in (1, -1))
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, now.contiguous(), to, group), dist.P2POp(dist.irecv, coming, from_, group)
        ]):  # fmt: skip
            work.wait()
        now = coming
    return torch.cat([outs[owner] for owner in range(p)], 1)


def _wrong(rank, group):
    """How far the wrong ring's y and the right one's are from one device."""
    p, weight, whole = group.size(), draw(1, N, D), draw(0, 2, T, D)
    x, right = whole.chunk(p, 1)[rank], F.linear(whole, weight)
    found = [turned_the_wrong_way(rank, group, x, weight), gather_product(x, weight, tp=group, form="ring")]
    return [math.log10(float((y - right).abs().max()) + 1e-30) > -6 for y in found]


def test_a_ring_turned_the_wrong_way_is_right_at_two_ranks_and_noticed_at_four():
    assert run_ranks(_wrong, 2) == [[False, False]] * 2
    assert run_ranks(_wrong, 4) == [[True, False]] * 4
