"""`sum_gradients`: one call for each dtype, exact bytes, in place; and what goes wrong where ranks disagree."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ledger_help import logged
from rig import run_ranks
from torch import nn
from wire_cases import make

from tpcourse.sequence import sum_gradients

SHAPES = [(5,), (), (2, 3), (1,), (0,), (4, 1, 3)]
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def gradients_of(rank: int, times: int = 1) -> list[torch.Tensor | None]:
    """Whole numbers of three dtypes by turns, some not contiguous, with a None between."""
    found: list[torch.Tensor | None] = []
    for number in range(times * len(SHAPES)):
        found.append(make(rank + 10 * number, SHAPES[number % len(SHAPES)]).to(DTYPES[number % len(DTYPES)]))
        found.append(None)
    found.append(make(rank, (3, 4)).float().T)
    found.append(make(rank, (8,)).float()[::2])
    return found


def _sums(rank, group):
    """Whether every gradient is the sum, the tensor that it was, and in the memory in which it was."""
    p, found = dist.get_world_size(group), gradients_of(rank)
    places = [None if g is None else (g.data_ptr(), g.stride()) for g in found]
    before = list(found)
    sum_gradients(iter(found), tp=group)
    everyone = [gradients_of(r) for r in range(p)]
    right = [g is None or torch.equal(g, sum(xs)) for g, xs in zip(found, zip(*everyone, strict=True), strict=True)]
    stayed = [g is None or (g.data_ptr(), g.stride()) == place for g, place in zip(found, places, strict=True)]
    return all(right), all(stayed), all(a is b for a, b in zip(before, found, strict=True))


@pytest.mark.parametrize("p", [2, 3, 4])
def test_each_gradient_becomes_the_sum_and_stays_the_same_tensor_in_the_same_memory(p):
    assert run_ranks(_sums, p) == [(True, True, True)] * p


def _calls(rank, group, times):
    log = logged(lambda: sum_gradients(gradients_of(rank, times), tp=group))
    return [(event.op, event.dtype, event.bytes_sent) for event in log.events]


@pytest.mark.parametrize("times", [1, 4, 20])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_there_is_one_all_reduce_for_each_dtype_of_exactly_its_bytes_whatever_the_number_of_weights(p, times):
    expected = []
    for dtype in DTYPES:
        own = [g for g in gradients_of(0, times) if g is not None and g.dtype == dtype]
        n = sum(g.numel() for g in own) * dtype.itemsize
        expected.append(("all_reduce", str(dtype).removeprefix("torch."), -(-2 * (p - 1) * n // p)))
    assert run_ranks(_calls, p, times) == [expected] * p


def _weights(rank, group):
    """What an optimizer holds: `weight.grad`, before and after; a frozen weight and one that nothing reached."""
    net = nn.ModuleDict({name: nn.LayerNorm(4) for name in ("used", "frozen", "spare")}).double()
    net["frozen"].requires_grad_(False)
    net["used"](make(rank, (3, 4))).square().sum().backward()
    before = [weight.grad for weight in net.parameters()]
    sum_gradients((weight.grad for weight in net.parameters()), tp=group)
    after = [weight.grad for weight in net.parameters()]
    return [a is b for a, b in zip(before, after, strict=True)], [g is None for g in after]


def test_weights_keep_their_gradient_objects_and_those_without_one_stay_without():
    same, none = run_ranks(_weights, 2)[0]
    assert same == [True] * 6 and none == [False, False, True, True, True, True]


def _nothing(rank, group):
    return [logged(lambda gs=gs: sum_gradients(gs, tp=group)).num_calls for gs in ([], [None, None])]


def test_where_no_weight_has_a_gradient_nothing_is_sent():
    assert run_ranks(_nothing, 2) == [[0, 0]] * 2


def test_on_one_device_a_gradient_stays_as_it_is():
    gradient = torch.ones(3)
    sum_gradients([gradient, None], tp=None)
    assert gradient.tolist() == [1, 1, 1]


def _a_weight(rank, group):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are compared by the caller)
        sum_gradients(nn.LayerNorm(4).parameters(), tp=group)
    return str(caught.value)


def test_a_weight_in_the_place_of_its_gradient_is_refused():
    assert all("shape [4] requires a gradient, so it is a weight" in text for text in run_ranks(_a_weight, 2))


def _one_missing(rank, group, fill):
    """Rank 0 has no second gradient, rank 1 no first; each gives None, or zeros."""
    gradients = [torch.full((3,), 10.0 + rank), torch.full((3,), 20.0 + rank)]
    gradients[1 - rank] = torch.zeros(3) if fill else None
    sum_gradients(gradients, tp=group)
    return [None if g is None else g[0].item() for g in gradients]


def test_none_on_some_ranks_only_adds_up_gradients_of_different_weights_and_zeros_in_its_place_do_not():
    assert run_ranks(_one_missing, 2, False) == [[31, None], [None, 31]]
    assert run_ranks(_one_missing, 2, True) == [[10, 21]] * 2


def one_call_each(gradients, tp):
    for gradient in gradients:
        dist.all_reduce(gradient, group=tp)


def _many(rank, group, add_up):
    log = logged(lambda: add_up([torch.ones(6) for _ in range(9)], tp=group))
    return log.num_calls, log.bytes_sent


def test_a_call_for_each_weight_is_seen_by_the_count_and_not_by_the_bytes():
    assert run_ranks(_many, 3, sum_gradients) == [(1, 288)] * 3
    assert run_ranks(_many, 3, one_call_each) == [(9, 288)] * 3
