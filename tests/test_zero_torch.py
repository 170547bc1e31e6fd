"""The same case with torch's own: ZeroRedundancyOptimizer under DistributedDataParallel, and fully_shard."""

from __future__ import annotations

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
    return state_of(model)


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
        states = zero.held
        with zero.whole():
            found[stage] = state_of(zero.module), states
    return found


@pytest.mark.parametrize("p", [2, 3])
def test_torchs_sharded_optimizer_and_fully_shard_end_with_the_same_weights(p):
    ours, redundancy, sharded = run_ranks(_ours, p), run_ranks(_redundancy, p), run_ranks(_sharded, p)
    for rank in range(p):
        assert all(largest_error(ours[rank][stage][0], redundancy[rank]) <= RTOL for stage in (1, 2, 3))
        assert largest_error(ours[rank][3][0], sharded[rank][0]) <= RTOL
    held_here = {kind: sum(rank[3][1][kind] for rank in ours) for kind in ("parameter", "moment")}
    held_there = {kind: sum(rank[1][kind] for rank in sharded) for kind in ("parameter", "moment")}
    whole = 8 * sum(weight.numel() for weight in new_model().frozen.parameters())
    held_here["parameter"] -= (p - 1) * whole  # fully_shard shards frozen weights too
    for kind, size in held_here.items():
        assert size <= 1.1 * held_there[kind], "we pad less than it does, as arrays are cut anywhere and not by rows"
