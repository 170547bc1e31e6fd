"""What belongs to a module's gradients lives as long as the module, and no longer."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from rig import run_ranks
from torch import nn

from tpcourse.data import DataParallel
from tpcourse.zero import Zero1, Zero2, Zero3


def _let_go(rank, group, kind):
    """Which of the module, its weights and the owner of its hooks are alive when nobody names them any more."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    owner = kind(module, dp=group)
    module(torch.ones(1, 3)).sum().backward()
    if kind is not DataParallel:
        owner.step()
    alive = [weakref.ref(each) for each in (module, owner, *module.parameters())]
    del module, owner
    gc.collect()
    return [ref() is not None for ref in alive]


@pytest.mark.parametrize("kind", [DataParallel, Zero1, Zero2, Zero3])
def test_what_nobody_names_is_freed_with_its_weights(kind):
    assert run_ranks(_let_go, 2, kind) == [[False] * 6] * 2


def _unnamed(rank, group):
    module = nn.Linear(1, 1, bias=False)
    DataParallel(module, dp=group)
    gc.collect()
    module(torch.full((1, 1), float(rank))).sum().backward()
    twin, read = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    twin(torch.full((1, 1), float(rank))).sum().backward()
    return module.weight.grad.item(), twin.weight.grad.item(), read.data_parallel.owner is None


def test_a_data_parallel_without_a_name_averages_as_long_as_its_module_lives_and_a_copy_does_not():
    assert run_ranks(_unnamed, 2) == [(0.5, float(rank), True) for rank in range(2)]
