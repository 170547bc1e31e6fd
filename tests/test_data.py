"""Data parallel ranks end with the weights of one device, and with those of torch's DistributedDataParallel."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from data_cases import (
    SHARES,
    SMALL,
    STEPS,
    largest_error,
    new_model,
    new_optimizer,
    on_one_device,
    on_ranks,
    share,
    squares,
    state_of,
)
from ledger_help import fresh_ledger
from rig import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tpcourse.data import (
    DataParallel,
    average_gradients,
    average_in_buckets,
    broadcast_module,
    count_over_ranks,
    mean_over_ranks,
)
from tpcourse.ledger import ledger
from tpcourse.train import accumulate

RTOL = 1e-12


def _in_place(rank, group):
    """As `on_ranks`, with an optimizer that zeroes gradients in place: backward adds into the buckets."""
    p = dist.get_world_size(group)
    model = new_model(rank)
    parallel = DataParallel(model, dp=group, allow_unused=True, **SMALL)
    optimizer = new_optimizer(model)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        accumulate(model, *share(step, rank, p), parallel=parallel, loss_sum=squares)
        optimizer.step()
    return state_of(model)


def _ddp(rank, group):
    """torch's own on the same case."""
    p = dist.get_world_size(group)
    model = new_model(rank)
    ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.0004, find_unused_parameters=True)
    optimizer = new_optimizer(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = share(step, rank, p)
        mean_over_ranks(squares(ddp, x, y), y.numel(), dp=group).backward()
        optimizer.step()
    return state_of(model)


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_ten_adam_steps_with_uneven_shares_a_tied_an_unused_and_a_frozen_weight_are_those_of_one_device(p):
    expected = on_one_device()
    for got in run_ranks(on_ranks, p):
        assert largest_error(got, expected) < RTOL


@pytest.mark.parametrize("p", [2, 3, 4])
def test_gradients_that_are_zeroed_in_place_give_the_same_weights(p):
    expected = on_one_device()
    for got in run_ranks(_in_place, p):
        assert largest_error(got, expected) < RTOL


@pytest.mark.parametrize("p", [2, 3, 4])
def test_torchs_distributed_data_parallel_ends_with_the_same_weights(p):
    for ours, theirs in zip(run_ranks(on_ranks, p), run_ranks(_ddp, p), strict=True):
        assert largest_error(ours, theirs) < RTOL


@pytest.mark.parametrize("micro_batches", [2, 3, 12])
@pytest.mark.parametrize("p", [2, 3])
def test_micro_batches_of_any_number_and_length_change_nothing(p, micro_batches):
    expected = on_one_device()
    for got in run_ranks(on_ranks, p, DataParallel, micro_batches):
        assert largest_error(got, expected) < RTOL


def _gradients(rank, group, average, **options):
    """The gradients of rank r's mean loss averaged by a function, and what one device computes from all examples."""
    p = dist.get_world_size(group)
    model = new_model(0)
    whole = copy.deepcopy(model)
    xs, ys = zip(*(share(step, 3, 4) for step in range(p)), strict=True)  # equally many for each rank
    squares(whole, torch.cat(xs), torch.cat(ys)).div(3 * p * 3).backward()
    squares(model, xs[rank], ys[rank]).div(3 * 3).backward()
    average(model, dp=group, **options)
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    return [got.grad is want.grad is None or torch.allclose(got.grad, want.grad, rtol=RTOL) for got, want in pairs]


def _in_small_buckets(model, *, dp):
    average_in_buckets(model, dp=dp, bucket_mb=0.0001)


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("average", [average_gradients, average_in_buckets, _in_small_buckets])
def test_averages_taken_after_backward_are_the_gradients_of_one_device(p, average):
    assert all(all(found) for found in run_ranks(_gradients, p, average))


def _sizes_agree(rank, group):
    found = []
    for bucket_mb in (0.000001, 0.0001, 0.0004, 0.01, 25, float("inf")):
        model = new_model(0)
        parallel = DataParallel(model, dp=group, allow_unused=True, bucket_mb=bucket_mb, first_bucket_mb=0.0001)
        accumulate(model, *share(0, rank, dist.get_world_size(group)), parallel=parallel, loss_sum=squares)
        found.append([None if w.grad is None else w.grad.clone() for w in model.parameters()])
    rest = [all(a is b is None or torch.equal(a, b) for a, b in zip(found[0], other, strict=True)) for other in found]
    return all(rest)


@pytest.mark.parametrize("p", [2, 3])
def test_the_size_of_buckets_changes_no_value_not_even_where_every_element_is_a_bucket(p):
    assert all(run_ranks(_sizes_agree, p))


class Mixed(nn.Module):
    """Weights of three dtypes, in turns."""

    def __init__(self):
        super().__init__()
        dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.bfloat16, torch.float32)
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=dtype) for dtype in dtypes)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
        return x


def _mixed(rank, group):
    p = dist.get_world_size(group)
    torch.manual_seed(rank)
    model = Mixed()
    parallel = DataParallel(model, dp=group, bucket_mb=0.00002, first_bucket_mb=0.00001)
    whole = copy.deepcopy(model)
    xs = [torch.randn(4, 3, generator=torch.Generator().manual_seed(r)) for r in range(p)]
    accumulate(model, xs[rank], xs[rank], parallel=parallel, loss_sum=squares)
    grads = []
    for x in xs:  # one device, share by share: bf16 sums would differ by their order
        whole.zero_grad()
        squares(whole, x, x).div(12).backward()
        grads.append([w.grad.double() for w in whole.parameters()])
    mean = [sum(parts) / p for parts in zip(*grads, strict=True)]
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float64: 1e-12}
    bad = [
        name
        for (name, w), want in zip(model.named_parameters(), mean, strict=True)
        if not torch.allclose(w.grad.double(), want, rtol=0, atol=tolerance[w.dtype] * float(want.abs().max()))
    ]
    return bad, [bucket.dtype for bucket in parallel.buckets], [w.grad.dtype == w.dtype for w in model.parameters()]


@pytest.mark.parametrize("p", [2, 3])
def test_weights_of_several_dtypes_travel_in_buckets_of_their_own(p):
    for bad, dtypes, kept in run_ranks(_mixed, p):
        assert bad == [] and all(kept)
        assert set(dtypes) == {torch.float32, torch.bfloat16, torch.float64}


def _starts(rank, group, root):
    model = new_model(rank)
    model.register_buffer("flags", torch.tensor([rank == root, True]))
    model.register_buffer("count", torch.tensor(rank))
    broadcast_module(model, dp=group, root=root)
    return state_of(model)


@pytest.mark.parametrize("root", [0, 1, 2])
def test_every_rank_starts_from_the_roots_weights_frozen_weights_and_buffers(root):
    states = run_ranks(_starts, 3, root)
    assert states[0]["count"] == root and states[0]["flags"].all()
    for name, value in new_model(root).state_dict().items():
        assert all(torch.equal(state[name], value) for state in states)


def _batch_norm(rank, group):
    torch.manual_seed(rank)
    model = nn.BatchNorm1d(3)
    parallel = DataParallel(model, dp=group)
    model(torch.randn(5, 3)).sum().backward()
    before = model.running_mean.clone()
    parallel.broadcast_buffers()
    return before, model.running_mean.clone(), int(model.num_batches_tracked)


def test_buffers_drift_apart_and_are_rank_0s_again_after_broadcast_buffers():
    (first, kept, _), (second, got, count) = run_ranks(_batch_norm, 2)
    assert not torch.equal(first, second)
    assert torch.equal(kept, first) and torch.equal(got, first) and count == 1


def _turns(rank, group):
    """Step 0 reaches `left` and `right`; step 1 reaches `right` on rank 1 only; step 2 neither."""
    model = nn.ModuleDict({"left": nn.Linear(2, 2, bias=False), "right": nn.Linear(2, 2, bias=False)}).double()
    for weight in model.parameters():
        nn.init.ones_(weight)
    DataParallel(model, dp=group, allow_unused=True, **SMALL)
    found = []
    for used in (("left", "right"), ("left", "right") if rank == 1 else ("left",), ("left",)):
        model.zero_grad()
        x = torch.full((1, 2), 1.0 + rank, dtype=torch.float64)
        sum(model[name](x).sum() for name in used).backward()
        found.append([None if w.grad is None else w.grad[0, 0].item() for w in model.parameters()])
    return found


def test_a_weight_that_some_ranks_reach_gets_their_share_and_one_that_none_reaches_has_no_gradient():
    for found in run_ranks(_turns, 2):
        assert found == [[1.5, 1.5], [1.5, 1.0], [1.5, None]]


def _kept(rank, group):
    """A gradient from an earlier backward stays, also if the next backward does not reach its weight."""
    model = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)]).double()
    parallel = DataParallel(model, dp=group, allow_unused=True)
    x = torch.full((1, 1), 1.0 + rank, dtype=torch.float64)
    (model[0](x) + model[1](x)).sum().backward()
    model[0](x).sum().backward()
    with parallel.no_sync():
        model[1](x).sum().backward()
    model[0](x).sum().backward()
    return [w.grad.item() for w in model.parameters()]


def test_gradients_add_up_over_backwards_as_they_do_on_one_device():
    assert run_ranks(_kept, 2) == [[4.5, 3.0]] * 2


def _wrapped(rank, group, times):
    model = new_model(rank)
    for _ in range(times):
        parallel = DataParallel(model, dp=group, allow_unused=True, **SMALL)
    with fresh_ledger(), ledger() as log:
        accumulate(model, *share(0, rank, 2), parallel=parallel, loss_sum=squares)
    return [w.grad for w in model.parameters()], log.num_calls


def test_a_second_data_parallel_on_the_same_module_replaces_the_first():
    for (once, calls), (twice, again) in zip(run_ranks(_wrapped, 2, 1), run_ranks(_wrapped, 2, 2), strict=True):
        assert calls == again
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(once, twice, strict=True))


def _removed(rank, group):
    model = nn.Linear(1, 1, bias=False)
    parallel = DataParallel(model, dp=group)
    parallel.remove()
    model(torch.full((1, 1), 1.0 + rank)).sum().backward()
    return model.weight.grad.item()


def test_after_remove_gradients_stay_on_their_rank():
    assert run_ranks(_removed, 2) == [1.0, 2.0]


def _counted(rank, group):
    total = count_over_ranks(SHARES[3][rank], dp=group)
    loss = torch.tensor(float(rank), requires_grad=True)
    mean = mean_over_ranks(loss, SHARES[3][rank], dp=group)
    mean.backward()
    return total.item(), mean.item(), loss.grad.item()


def test_the_average_of_mean_over_ranks_is_the_mean_over_all_examples():
    found = run_ranks(_counted, 3)
    assert [total for total, _, _ in found] == [11] * 3
    assert sum(mean for _, mean, _ in found) / 3 == pytest.approx((0 + 1 + 2) / 11)
    assert [gradient for _, _, gradient in found] == pytest.approx([3 / 11] * 3)
