"""ZeRO on NCCL: one device's weights, calls in order and under products, saves between GPUs."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ledger_help import fresh_ledger
from rig import run_ranks
from torch import nn
from zero_cases import (
    EXAMPLES,
    MAX_NORM,
    STAGES,
    STEPS,
    largest_error,
    make,
    new_model,
    on_one_device,
    share,
    squares,
    state_of,
)

from tpcourse.ledger import ledger
from tpcourse.zero import Zero3, load, read, save

NUM_GPUS = min(4, torch.cuda.device_count())
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 CUDA GPUs, found {NUM_GPUS}"),
]
TIGHT = 1e-10
"""Sums of another machine, in another order, ten steps long."""


def advance(zero, rank, group, device, steps=range(STEPS)):
    """Steps on this rank's share; nothing in it waits for the GPU."""
    p = 1 if group is None else dist.get_world_size(group)
    for step in steps:
        zero.zero_grad()
        x, y = (part.to(device) for part in share(step, rank, p))
        (squares(zero.module, x, y) * p / EXAMPLES).backward()
        zero.clip(MAX_NORM)
        zero.step()


def whole_state(zero):
    with zero.whole():
        return {name: value.cpu() for name, value in state_of(zero.module).items()}


def _errors(rank, group, device, alone=False):
    """The largest error of ten steps by stage."""
    found, dp = {}, None if alone else group
    for stage in STAGES:
        zero = make(stage, new_model().to(device), dp)
        advance(zero, rank, dp, device)
        found[stage] = largest_error(whole_state(zero), on_one_device()[0])
    return found


@pytest.mark.parametrize("p", range(1, NUM_GPUS + 1))
def test_ten_steps_of_all_stages_are_those_of_one_device_on_nccl(p):
    for found in run_ranks(_errors, p, "cuda", backend="nccl"):
        assert max(found.values()) < TIGHT, found


def test_without_a_group_all_stages_are_one_device_on_a_gpu():
    (found,) = run_ranks(_errors, 1, "cuda", True, backend="nccl")
    assert max(found.values()) < TIGHT, found


def _order(rank, group, device, prefetch):
    """Gathers, forwards and scatters of one step, in order, by the layer they are for."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(7, 6 + k), nn.Tanh(), nn.Linear(6 + k, 7)) for k in range(4)))
    zero, seen = Zero3(model.to(device), dp=group, prefetch=prefetch), []
    numbers = {part[0].whole.numel(): number for number, part in enumerate(zero._parts[1:])}
    assert len(numbers) == 4
    for number, layer in enumerate(model):  # behind the hook that gathers
        layer.register_forward_pre_hook(lambda _, inputs, number=number: seen.append((len(log.events), number)))
    with fresh_ledger(), ledger() as log:
        zero.module(torch.ones(2, 7, device=device)).sum().backward()
    words = {"all_gather": "gather", "reduce_scatter": "scatter"}
    p = dist.get_world_size(group)
    lines = [f"{words[e.op]} {numbers[e.numel * (p if e.op == 'all_gather' else 1)]}" for e in log.events]
    for place, number in reversed(seen):
        lines.insert(place, f"forward {number}")
    return ", ".join(lines)


AHEAD = (
    "gather 0, gather 1, forward 0, gather 2, forward 1, gather 3, forward 2, forward 3, "
    "gather 3, gather 2, scatter 3, gather 1, scatter 2, gather 0, scatter 1, scatter 0"
)
ONE_BY_ONE = (
    "gather 0, forward 0, gather 1, forward 1, gather 2, forward 2, gather 3, forward 3, "
    "gather 3, scatter 3, gather 2, scatter 2, gather 1, scatter 1, gather 0, scatter 0"
)


@pytest.mark.parametrize(("prefetch", "expected"), [(True, AHEAD), (False, ONE_BY_ONE)])
def test_layers_are_gathered_one_ahead_with_prefetch_and_one_by_one_without(prefetch, expected):
    assert run_ranks(_order, 2, "cuda", prefetch, backend="nccl") == [expected] * 2


def _losses(rank, group, device, width, num_steps):
    """Losses of every stage on layers so large that calls and products overlap, while the CPU runs ahead."""
    found, x = [], torch.randn(256, width, dtype=torch.float64).to(device) * (1 + rank)
    for stage, options in ((1, {}), (2, {}), (3, {}), (3, {"prefetch": False})):
        torch.manual_seed(0)
        layers = (nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(8))
        model = nn.Sequential(*layers).to(device, torch.float64)
        zero, losses = STAGES[stage](model, dp=group, lr=1e-3, **options), []
        for _ in range(num_steps):
            zero.zero_grad()
            loss = (zero.module(x) - 1).square().mean()
            loss.backward()
            zero.step()
            losses.append(loss.detach())
        found.append(torch.stack(losses).tolist())
    return found


def test_stages_agree_when_calls_overlap_with_products():
    for first, *others in run_ranks(_losses, 2, "cuda", 1024, 20, backend="nccl"):
        assert first[-1] < 0.99 * first[0]
        assert all(other == pytest.approx(first, rel=1e-9) for other in others)


def _saved(rank, group, device, folder, stage, other):
    """Errors of a run that was saved by one stage and went on in another, and of what one device reads."""
    zero = make(stage, new_model().to(device), group)
    advance(zero, rank, group, device, range(4))
    save(zero, folder)
    there, here = read(folder), whole_state(zero)
    reading = largest_error(there, {name: here[name] for name in there})  # a tied weight has one name there
    again = make(other, new_model(seed=5 + rank).to(device), group, lr=0.7)
    load(again, folder)
    advance(again, rank, group, device, range(4, STEPS))
    return reading, largest_error(whole_state(again), on_one_device()[0])


@pytest.mark.parametrize(("stage", "other"), [(1, 3), (3, 2), (3, 3)])
def test_what_gpus_save_goes_on_on_gpus_in_any_stage(stage, other, tmp_path):
    for reading, error in run_ranks(_saved, 2, "cuda", str(tmp_path), stage, other, backend="nccl"):
        assert reading < 1e-15 and error < TIGHT


def _goes_on(rank, group, device, folder):
    zero = make(1, new_model(seed=9).to(device), group)
    load(zero, folder)
    advance(zero, rank, group, device, range(4, STEPS))
    return largest_error(whole_state(zero), on_one_device()[0])


def test_what_two_gpus_save_one_gpu_reads(tmp_path):
    run_ranks(_saved, 2, "cuda", str(tmp_path), 3, 3, backend="nccl")
    (error,) = run_ranks(_goes_on, 1, "cuda", str(tmp_path), backend="nccl")
    assert error < TIGHT
