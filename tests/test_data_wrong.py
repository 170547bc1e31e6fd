"""Data parallelism with one mistake does not pass: the tests of values and calls notice each."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from data_cases import SMALL, largest_error, new_model, on_one_device, on_ranks, share, squares
from ledger_help import fresh_ledger
from rig import run_ranks
from torch import nn

from tpcourse.data import DataParallel
from tpcourse.ledger import ledger
from tpcourse.train import accumulate

NOTICED = 1e-6


class SumForMean(DataParallel):
    """Adds the gradients and never divides."""

    def _leave(self, bucket):
        self.gradients.fill(bucket)
        return dist.all_reduce(self.gradients.piece(bucket), group=self.dp, async_op=True)


class DividedTwice(DataParallel):
    """Divides before and after."""

    def _finish(self):
        super()._finish()
        for flat in self.gradients.flat.values():
            flat /= self.p


class OwnWeights(DataParallel):
    """Keeps the weights that each rank made."""

    def __init__(self, module, **options):
        before = [value.clone() for value in module.state_dict().values()]
        super().__init__(module, **options)
        for value, mine in zip(module.state_dict().values(), before, strict=True):
            value.copy_(mine)


class ZerosForNone(DataParallel):
    """Leaves zeros where no rank had a gradient: weight decay then moves what one device leaves alone."""

    def _finish(self):
        super()._finish()
        for weight, view in zip(self.weights, self.gradients.views, strict=True):
            weight.grad = view


class StaleViews(DataParallel):
    """Lets the last step's average travel for a weight that was not reached."""

    def _leave(self, bucket):
        for index in bucket.members:
            if self.weights[index].grad is None:
                self.weights[index].grad = self.gradients.views[index]
        return super()._leave(bucket)


class LosesUnused(DataParallel):
    """Sends the buckets that were filled, and no others."""

    def _finish(self):
        self._wait()
        self._begin_step()


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("wrong", [SumForMean, DividedTwice, OwnWeights, ZerosForNone, LosesUnused])
def test_weights_after_ten_steps_notice(wrong, p):
    """Adam is nearly blind to a factor of all gradients; ten steps and its epsilon are enough."""
    expected = on_one_device()
    assert max(largest_error(got, expected) for got in run_ranks(on_ranks, p, wrong)) > 1e-9


def _step(rank, group, make, weighted=True):
    """Gradients of one step, and of one device: the largest relative error."""
    p = dist.get_world_size(group)
    model = new_model(0)
    parallel = make(model, dp=group, allow_unused=True, **SMALL)
    x, y = share(0, rank, p)
    if weighted:
        accumulate(model, x, y, parallel=parallel, loss_sum=squares)
    else:
        squares(model, x, y).div(y.numel()).backward()
    whole = new_model(0)
    xs, ys = zip(*(share(0, r, p) for r in range(p)), strict=True)
    accumulate(whole, torch.cat(xs), torch.cat(ys), loss_sum=squares)
    pairs = [(a.grad, b.grad) for a, b in zip(model.parameters(), whole.parameters(), strict=True)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs if b is not None)


@pytest.mark.parametrize("wrong", [SumForMean, DividedTwice])
def test_gradients_after_one_step_notice_a_factor(wrong):
    assert min(run_ranks(_step, 3, DataParallel)) < 1e-12
    assert min(run_ranks(_step, 3, wrong)) > NOTICED


@pytest.mark.parametrize("p", [2, 4])
def test_the_mean_of_means_is_noticed_where_shares_differ(p):
    assert max(run_ranks(_step, p, DataParallel, True)) < 1e-12
    assert min(run_ranks(_step, p, DataParallel, False)) > NOTICED


def _twice(rank, group, make):
    """The second step does not reach `right`."""
    model = nn.ModuleDict({"left": nn.Linear(2, 2), "right": nn.Linear(2, 2)}).double()
    make(model, dp=group, allow_unused=True, **SMALL)
    for used in (("left", "right"), ("left", "right") if rank else ("left",)):
        model.zero_grad()
        sum(model[name](torch.ones(1, 2, dtype=torch.float64)).sum() for name in used).backward()
    return model["right"].weight.grad[0, 0].item()


def test_a_stale_gradient_of_a_weight_that_was_not_reached_is_noticed():
    assert run_ranks(_twice, 2, DataParallel) == [0.5, 0.5]
    assert run_ranks(_twice, 2, StaleViews) == [1.0, 1.0]


class OrderOfArrival(DataParallel):
    """Sends each bucket the moment it is full, whatever the others have sent."""

    def _arrived(self, index, weight):
        self._reached.add(index)
        if not self._here:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._here.add(index)
        for number in self._homes[index]:
            self._missing[number] -= 1
            if not self._missing[number]:
                self._under_way.append(self._leave(self.buckets[number]))

    def _finish(self):
        self._wait()
        self._begin_step()


def _branches(rank, group, make):
    """Rank 1 runs its two branches in the other order; a bucket for each weight, all equally large."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)]).double()
    make(model, dp=group, bucket_mb=0.000072, first_bucket_mb=0.000072)
    order = (1, 0) if rank else (0, 1)
    x = torch.ones(1, 3, dtype=torch.float64)
    sum((1 + index) * model[index](x).sum() for index in order).backward()
    return [w.grad[0, 0].item() for w in model.parameters()]


def test_buckets_in_another_order_on_one_rank_mix_two_weights_up_and_are_noticed():
    assert run_ranks(_branches, 2, DataParallel) == [[1.0, 2.0]] * 2
    assert run_ranks(_branches, 2, OrderOfArrival) == [[1.5, 1.5]] * 2


class EveryMicroBatch(DataParallel):
    """Averages in accumulation too: right, and k times the bytes."""

    def no_sync(self):
        return torch.enable_grad()


class TiedTwice(DataParallel):
    """Sends a tied weight once for each of its names."""

    def _finish(self):
        super()._finish()
        names = dict(self.module.named_parameters(remove_duplicate=False))
        for name in set(names) - set(dict(self.module.named_parameters())):
            dist.all_reduce(names[name].grad, group=self.dp)
            names[name].grad /= self.p


def _calls(rank, group, make, micro_batches):
    parallel = make(new_model(0), dp=group, allow_unused=True, **SMALL)
    with fresh_ledger(), ledger() as log:
        batch = share(0, rank, 2)
        accumulate(parallel.module, *batch, parallel=parallel, micro_batches=micro_batches, loss_sum=squares)
    return log.num_calls, log.bytes_sent


@pytest.mark.parametrize(("wrong", "micro_batches"), [(EveryMicroBatch, 3), (TiedTwice, 1)])
def test_calls_and_bytes_notice_what_values_do_not(wrong, micro_batches):
    (calls, sent), _ = run_ranks(_calls, 2, DataParallel, micro_batches)
    (more_calls, more_sent), _ = run_ranks(_calls, 2, wrong, micro_batches)
    assert more_calls > calls and more_sent > sent
    assert max(run_ranks(_step, 2, wrong)) < 1e-12
