"""Sequence parallel on NCCL: the same values, masks that agree on the GPUs, and no wait for the GPU on the way."""

from __future__ import annotations

import pytest
import torch
from rig import run_ranks
from test_sequence_dropout import RATE, SHAPE, mask_of

from tpcourse.sequence import Seeds, dropout, enter, leave, sum_gradients

NUM_GPUS = min(4, torch.cuda.device_count())
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 CUDA GPUs, found {NUM_GPUS}"),
]


def _masks(rank, group):
    seeds = Seeds(7, tp=group, device="cuda")
    x = torch.ones(SHAPE, device="cuda")
    draws = [seeds.shared("mlp", 0), seeds.shared("mlp", 0), seeds.shared("mlp", 1), seeds.own("mlp", 0)]
    return [(dropout(x, RATE, generator) != 0).tolist() for generator in draws]


def test_masks_on_gpus_agree_and_differ_as_on_the_cpu():
    first, second = run_ranks(_masks, 2, backend="nccl")
    assert first[:3] == second[:3] and first[0] == first[1] != first[2]
    assert first[3] != second[3]


def _without_waiting(rank, group):
    """What waits for the GPU raises."""
    seeds = Seeds(7, tp=group, device="cuda")
    x = torch.randn(2, 7, 64, device="cuda", requires_grad=True)
    gradients = [torch.ones(5, device="cuda"), None, torch.ones(3, 2, device="cuda", dtype=torch.bfloat16)]
    sum_gradients(gradients, tp=group)  # the first call of a group may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        piece = dropout(enter(x, tp=group), RATE, seeds.own("mlp", 0))
        y = dropout(leave(piece, tp=group, num_tokens=7), RATE, seeds.shared("mlp", 1))
        y.sum().backward()
        sum_gradients(gradients, tp=group)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return gradients[0].tolist(), gradients[2].unique().tolist(), torch.equal(y.detach() == 0, x.grad == 0)


def test_nothing_waits_for_the_gpu():
    assert run_ranks(_without_waiting, 2, backend="nccl") == [([4.0] * 5, [4.0], True)] * 2


def _wrong_device(rank, group):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are compared by the caller)
        dropout(torch.ones(3, device="cuda"), RATE, Seeds(0, tp=group).own("mlp", 0))
    return str(caught.value), mask_of(Seeds(0, tp=group).own("mlp", 0)).any().item()


def test_a_generator_on_the_cpu_for_x_on_a_gpu_is_refused_with_the_fix():
    for rank, (text, works) in enumerate(run_ranks(_wrong_device, 2, backend="nccl")):
        assert text.endswith(f"and x on cuda:{rank}: make Seeds(..., device='cuda:{rank}')") and works
