"""The same collectives and pairs on NCCL, as many ranks as there are GPUs, at most 4."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rig import run_ranks
from test_conjugates import NAMES as PAIRS
from test_conjugates import _call, problem, size_lists, truth
from test_wire import NAMES
from wire_cases import mistakes

NUM_GPUS = min(4, torch.cuda.device_count())
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 CUDA GPUs, found {NUM_GPUS}"),
]


def _mistakes_on_gpu(rank, group, name):
    return mistakes(rank, group, name, device="cuda")


@pytest.mark.parametrize("p", range(2, NUM_GPUS + 1))
@pytest.mark.parametrize("name", NAMES)
def test_each_rank_holds_what_the_reference_says_on_nccl(name, p):
    assert run_ranks(_mistakes_on_gpu, p, name, backend="nccl") == [[]] * p


def _pair_mistakes(rank, group, name):
    p, found = dist.get_world_size(group), []
    for dim in (0, 1, 2):
        for sizes in size_lists(p):
            xs, dys = problem(name, p, dim, sizes)
            ys, dxs = truth(name, xs, dys, dim, sizes)
            x = xs[rank].cuda().requires_grad_()
            y = _call(name, x, group, dim, sizes)
            (dx,) = torch.autograd.grad(y, x, dys[rank].cuda())
            if not torch.equal(y.cpu(), ys[rank]) or not torch.equal(dx.cpu(), dxs[rank]):
                found.append(f"{name} dim {dim} sizes {sizes}")
    return found


@pytest.mark.parametrize("p", range(2, NUM_GPUS + 1))
@pytest.mark.parametrize("name", PAIRS)
def test_y_and_dx_of_each_pair_are_those_of_one_device_on_nccl(name, p):
    assert run_ranks(_pair_mistakes, p, name, backend="nccl") == [[]] * p
