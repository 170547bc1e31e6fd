"""What data parallel ranks send: how many calls, how many bytes, in which order, and when."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from data_cases import SMALL, new_model, share, squares
from ledger_help import fresh_ledger
from rig import run_ranks
from torch.utils._python_dispatch import TorchDispatchMode

from tpcourse.data import DataParallel, average_gradients, average_in_buckets, num_buckets
from tpcourse.ledger import ledger
from tpcourse.train import GPT, accumulate

COUNT = ("all_reduce", 8)
"""The one number that an uneven batch needs: int64."""


def logged(rank, group, *, micro_batches=1, swaps=False, **options):
    """One step's log, and the DataParallel that made it."""
    parallel = DataParallel(new_model(0, swaps=swaps), dp=group, allow_unused=True, **(SMALL | options))
    with fresh_ledger(), ledger() as log:
        batch = share(0, rank, dist.get_world_size(group))
        accumulate(parallel.module, *batch, parallel=parallel, micro_batches=micro_batches, loss_sum=squares)
    return log, parallel


def _budget(rank, group, bucket_mb, first_bucket_mb, micro_batches):
    sizes = {"bucket_mb": bucket_mb, "first_bucket_mb": first_bucket_mb}
    log, parallel = logged(rank, group, micro_batches=micro_batches, **sizes)
    count, *buckets = log.events
    assert (count.op, count.numel * 8) == COUNT
    assert {(event.op, event.dtype, event.is_async) for event in buckets} == {("all_reduce", "float64", True)}
    carried = sum(event.numel * 8 for event in buckets)
    return len(buckets), carried, parallel.num_bytes, log.bytes_sent - count.bytes_sent


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize(("bucket_mb", "first_mb"), [(0.0004, 0.0001), (0.0004, 0.0004), (0.001, 0.0002), (25, 1)])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_step_takes_as_many_calls_as_the_formula_says_whatever_the_number_of_micro_batches(
    p, bucket_mb, first_mb, micro_batches
):
    trained = 5 * 7 + 7 + 7 * 7 + 7 + 7 + 7 * 2 + 2 + 7 * 3 + 3  # left and right have one matrix
    flags = 9  # weights: enter 2, left 2, right 1, spare 2, leave 2
    num_bytes = 8 * (trained + flags)
    calls = num_buckets(num_bytes, int(bucket_mb * 1e6) // 8 * 8, int(first_mb * 1e6) // 8 * 8)
    for found in run_ranks(_budget, p, bucket_mb, first_mb, micro_batches):
        num_calls, carried, said, sent = found
        assert (num_calls, carried, said) == (calls, num_bytes, num_bytes)
        assert sent == pytest.approx(2 * (p - 1) / p * num_bytes, abs=num_calls)


def _ceil(rank, group):
    """A GPT without flags: the plain case."""
    torch.manual_seed(0)
    model = GPT(tied=rank >= 0)
    parallel = DataParallel(model, dp=group, bucket_mb=0.05, first_bucket_mb=0.05)
    num_bytes = sum(w.numel() * 4 for w in model.parameters())
    with fresh_ledger(), ledger() as log:
        model(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
    assert parallel.num_bytes == num_bytes
    return log.num_calls, -(-num_bytes // 50_000)


def test_a_gpt_takes_ceil_of_bytes_over_bucket_calls_when_the_first_bucket_is_not_smaller():
    for num_calls, ceil in run_ranks(_ceil, 2):
        assert num_calls == ceil == 3


def _silent(rank, group):
    parallel = DataParallel(new_model(0), dp=group)
    x, y = share(0, rank, 2)
    with fresh_ledger(), ledger() as log:
        for _ in range(3):
            with parallel.no_sync():
                squares(parallel.module, x, y).backward()
    return log.num_calls


def test_accumulation_sends_nothing():
    assert run_ranks(_silent, 2) == [0, 0]


def _afterwards(rank, group):
    found = []
    for average in (average_gradients, lambda model, dp: average_in_buckets(model, dp=dp, bucket_mb=0.0004)):
        model = new_model(0)
        squares(model, *share(0, 1, 2)).backward()
        with fresh_ledger(), ledger() as log:
            average(model, dp=group)
        found.append((log.count("all_reduce"), log.num_calls, sum(event.numel for event in log.events)))
    return found


def test_a_call_for_each_parameter_or_one_for_each_bucket_carry_the_same_bytes_and_a_tied_weight_once():
    reached = 5 * 7 + 7 + 7 * 7 + 7 + 7 + 7 * 3 + 3
    for simple, buckets in run_ranks(_afterwards, 3):
        assert simple == (7, 7, reached)
        assert buckets == (3, 3, reached) and -(-reached * 8 // 400) == 3


class Mark(torch.autograd.Function):
    """Notes, when backward comes by, how many calls a log has."""

    @staticmethod
    def forward(ctx, x, log, seen):
        ctx.log, ctx.seen = log, seen
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        ctx.seen.append(len(ctx.log.events))
        return dx, None, None


def _during(rank, group):
    parallel = DataParallel(new_model(0), dp=group, allow_unused=True, **SMALL)
    model, seen = parallel.module, []
    model.spare = torch.nn.Identity()
    x, y = share(0, rank, 2)
    with fresh_ledger(), ledger() as log:
        model.enter.register_forward_hook(lambda module, args, out: Mark.apply(out, log, seen))
        squares(model, x, y).backward()
    return seen, log.num_calls, [event.function for event in log.events][:1]


def _reached_only(rank, group):
    """Every weight is reached, so that buckets need not wait for the end."""
    model = GPT()
    parallel = DataParallel(model, dp=group, bucket_mb=0.02, first_bucket_mb=0.005)
    seen = []
    with fresh_ledger(), ledger() as log:
        model.blocks[0].register_forward_pre_hook(lambda module, args: (Mark.apply(args[0], log, seen),))
        model(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
    return seen, log.num_calls, len(parallel.buckets)


def test_buckets_leave_while_backward_still_runs():
    for seen, num_calls, num in run_ranks(_reached_only, 2):
        assert num_calls == num > 4
        assert 1 <= num - 3 <= seen[0] < num, "all but the last few have left when backward reaches the embeddings"


def test_an_unused_weight_in_the_first_bucket_keeps_the_others_until_the_end():
    """`spare` is the last but two of the module."""
    for seen, num_calls, _ in run_ranks(_during, 2):
        assert seen[0] < num_calls


def _order(rank, group, swaps):
    log, _ = logged(rank, group, swaps=swaps and rank == 1)
    _, *buckets = log.events
    return [(event.offset, event.numel) for event in buckets]


@pytest.mark.parametrize("swaps", [False, True])
def test_buckets_leave_in_the_order_of_the_flat_array_on_every_rank_also_where_backward_takes_another_way(swaps):
    first, second = run_ranks(_order, 2, swaps)
    assert first == second == sorted(first)
    ends = [offset + numel for offset, numel in first]
    assert [offset for offset, _ in first] == [0, *ends[:-1]]


class Copies(TorchDispatchMode):
    """Notes operations that copy."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "copy" in func.__name__ or "cat" in func.__name__ or "clone" in func.__name__:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def _views(rank, group):
    model = new_model(0)
    model.spare.requires_grad_(False)
    parallel = DataParallel(model, dp=group, **SMALL)
    flat = parallel.gradients.flat[torch.float64]
    found = []
    for set_to_none in (True, False):
        model.zero_grad(set_to_none=set_to_none)
        with Copies() as copies:
            accumulate(model, *share(0, rank, 2), parallel=parallel, loss_sum=squares)
        grads = [w.grad for w in model.parameters() if w.grad is not None]
        inside = all(g.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for g in grads)
        found.append((inside, len(grads), set(copies.names)))
    return found


def test_gradients_are_views_of_the_flat_array_filled_by_one_copy_or_by_none_if_they_were_zeroed_in_place():
    for fresh, in_place in run_ranks(_views, 2):
        assert fresh == (True, 7, {"_foreach_copy_.default"})
        assert in_place == (True, 7, set())


def _start(rank, group):
    with fresh_ledger(), ledger() as log:
        DataParallel(new_model(rank), dp=group)
    return [(event.op, event.peer, event.numel) for event in log.events]


def test_the_start_is_one_broadcast_from_rank_0_of_all_weights_and_buffers_of_a_dtype():
    everything = sum(w.numel() for w in new_model(0).parameters()) + 4
    assert run_ranks(_start, 3) == [[("broadcast", 0, everything)]] * 3


def _sub_group(rank, group):
    """Two groups of two: each averages within itself only."""
    parts = [dist.new_group(list(ranks), group_desc="dp") for ranks in ((0, 2), (1, 3))]
    model = torch.nn.Linear(1, 1, bias=False).double()
    DataParallel(model, dp=parts[rank % 2])
    with fresh_ledger(), ledger() as log:
        model(torch.full((1, 1), 1.0 + rank, dtype=torch.float64)).sum().backward()
    return model.weight.grad.item(), [(event.axis, event.group) for event in log.events]


def test_a_group_averages_within_itself():
    found = run_ranks(_sub_group, 4)
    assert [value for value, _ in found] == [2.0, 3.0, 2.0, 3.0]
    assert [calls for _, calls in found] == [[("dp", (0, 2))], [("dp", (1, 3))]] * 2
