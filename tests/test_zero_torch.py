"""The same case with torch's own: ZeroRedundancyOptimizer under DistributedDataParallel, and fully_shard."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.distributed as dist
from rig import run_ranks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from zero_cases import EXAMPLES, STEPS, advance, largest_error, make, new_model, share, squares, state_of

from tpcourse.memory import held

RTOL = 1e-12


def _steps(model, optimizer, rank, p):
    for step in range(STEPS):
        optimizer.zero_grad()
        (squares(model, *share(step, rank, p)) * p / EXAMPLES).backward()
        optimizer.step()


def _redundancy(rank, group):
    model = new_model()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    options = {"lr": 0.01, "weight_decay": 0.1}
    optimizer = ZeroRedundancyOptimizer(trained, torch.optim.AdamW, process_group=group, **options)
    _steps(DistributedDataParallel(model, process_group=group), optimizer, rank, dist.get_world_size(group))
    return state_of(model), held(model, optimizer.optim)


def _sharded(rank, group):
    model, p = new_model(), dist.get_world_size(group)
    for layer in (1, 3):  # the others share a weight
        fully_shard(model.parts[layer], mesh=DeviceMesh.from_group(group, "cpu"))
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01, weight_decay=0.1)
    _steps(model, optimizer, rank, p)
    state = {name: _whole(value) for name, value in state_of(model).items()}
    return state, held(model, optimizer)


def _whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _ours(rank, group):
    found = {}
    for stage in (1, 2, 3):
        zero = make(stage, new_model(), group, groups=None, weight_decay=0.1)
        advance(zero, rank, group, max_norm=None)
        states, padding = zero.held, 8 * sum(flat.padding for flat in zero.flats)
        with zero.whole():
            found[stage] = state_of(zero.module), states, padding
    return found


def _all_ways(rank, group):
    return _ours(rank, group), _redundancy(rank, group), _sharded(rank, group)


@cache
def after_ten_steps(p):
    """For each rank: weights and bytes of our stages, of ZeroRedundancyOptimizer and of fully_shard."""
    return run_ranks(_all_ways, p)


def total(ranks, kind):
    return sum(held_there[kind] for held_there in ranks)


@pytest.mark.parametrize("p", [2, 3])
def test_torchs_sharded_optimizer_and_fully_shard_end_with_the_same_weights(p):
    for ours, redundancy, sharded in after_ten_steps(p):
        for stage in (1, 2, 3):
            assert largest_error(ours[stage][0], redundancy[0]) <= RTOL
            assert largest_error(ours[stage][0], sharded[0]) <= RTOL


@pytest.mark.parametrize("p", [2, 3])
def test_stage_1_holds_what_the_zero_redundancy_optimizer_does_and_padding_and_no_whole_gradients(p):
    ranks = after_ten_steps(p)
    ours, theirs = [rank[0][1][1] for rank in ranks], [rank[1][1] for rank in ranks]
    padding = ranks[0][0][1][2]
    assert total(ours, "parameter") == total(theirs, "parameter") + p * padding
    assert total(ours, "moment") == total(theirs, "moment") + 2 * padding
    assert total(ours, "gradient") == theirs[0]["gradient"] + padding, "theirs are whole on each rank"


@pytest.mark.parametrize("p", [2, 3])
def test_stage_3_holds_no_more_than_fully_shard_which_cuts_by_rows(p):
    ranks = after_ten_steps(p)
    ours, theirs = [rank[0][3][1] for rank in ranks], [rank[2][1] for rank in ranks]
    padding = ranks[0][0][3][2]
    assert total(ours, "moment") == total(theirs, "moment") + 2 * padding
    frozen = 8 * sum(weight.numel() for weight in new_model().frozen.parameters())  # which fully_shard shards too
    most_here = {kind: max(rank[kind] for rank in ours) for kind in ("parameter", "gradient", "moment")}
    most_there = {kind: max(rank[kind] for rank in theirs) for kind in most_here}
    most_here["parameter"] -= frozen * (p - 1) / p
    assert all(0.8 * most_there[kind] < most_here[kind] <= most_there[kind] for kind in most_here)
