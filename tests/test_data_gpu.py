"""Data parallelism on NCCL: the weights of one device, gradients averaged on the way, buckets that leave early."""

from __future__ import annotations

import pytest
import torch
from data_cases import largest_error, on_one_device, on_ranks
from ledger_help import fresh_ledger
from rig import run_ranks

from tpcourse.data import DataParallel
from tpcourse.ledger import ledger
from tpcourse.train import GPT

NUM_GPUS = min(4, torch.cuda.device_count())
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 CUDA GPUs, found {NUM_GPUS}"),
]


@pytest.mark.parametrize("p", range(2, NUM_GPUS + 1))
def test_ten_adam_steps_are_those_of_one_device_on_nccl(p):
    expected = on_one_device()
    for got in run_ranks(on_ranks, p, DataParallel, 1, "cuda", backend="nccl"):
        assert largest_error(got, expected) < 1e-11, "sums of another machine, in another order"


def _calls(rank, group):
    torch.manual_seed(0)
    model = GPT(D=64, T=32).cuda().bfloat16()
    parallel = DataParallel(model, dp=group, bucket_mb=0.05, first_bucket_mb=0.01)
    seen = []
    model.blocks[0].register_full_backward_hook(lambda *_: seen.append(log.num_calls))
    with fresh_ledger(), ledger() as log:
        model(torch.randint(256, (2, 32), device="cuda")).float().pow(2).mean().backward()
        torch.cuda.synchronize()
    same = [w.grad.clone() for w in model.parameters()]
    for grad in same:
        torch.distributed.broadcast(grad, 0, group=group)
    equal = all(torch.equal(a, w.grad) for a, w in zip(same, model.parameters(), strict=True))
    return seen[0], log.num_calls, len(parallel.buckets), {event.reduction for event in log.events}, equal


def test_buckets_leave_during_backward_and_nccl_divides():
    for seen, num_calls, num, reductions, equal in run_ranks(_calls, 2, backend="nccl"):
        assert 1 <= seen < num_calls == num
        assert reductions == {"avg"} and equal
