"""Mixed-precision Adam against torch's own, and what is lost without a master copy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tpcourse import memory
from tpcourse.adam import MixedAdam

STEPS = 10


def pair():
    """A bfloat16 model and a float32 one with the same numbers."""
    torch.manual_seed(1)
    narrow = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).bfloat16()
    wide = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    wide.load_state_dict({name: value.float() for name, value in narrow.state_dict().items()})
    return narrow, wide


def backward(net, x):
    net.zero_grad()
    net(x.to(next(net.parameters()).dtype)).square().mean().backward()


@pytest.mark.parametrize("options", [{}, {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.1}])
def test_the_master_copy_moves_as_torch_s_adam_does_on_the_same_gradients(options):
    narrow, wide = pair()
    ours, torchs = MixedAdam(narrow.parameters(), **options), torch.optim.Adam(wide.parameters(), **options)
    for _ in range(STEPS):
        backward(narrow, torch.randn(4, 6))
        for p, q in zip(narrow.parameters(), wide.parameters(), strict=True):
            q.grad = p.grad.float()
        ours.step()
        torchs.step()
        for m, p, q in zip(ours.master, narrow.parameters(), wide.parameters(), strict=True):
            assert torch.equal(m, q)
            assert torch.equal(p, q.bfloat16())


def test_float32_parameters_are_their_own_master_and_step_as_torch_s_adam():
    _, wide = pair()
    _, other = pair()
    ours, torchs = MixedAdam(wide.parameters()), torch.optim.Adam(other.parameters())
    for _ in range(STEPS):
        x = torch.randn(4, 6)
        backward(wide, x)
        backward(other, x)
        ours.step()
        torchs.step()
    assert all(torch.equal(p, q) for p, q in zip(wide.parameters(), other.parameters(), strict=True))
    assert "master" not in memory.held(wide, ours)


def test_without_a_master_copy_one_step_is_the_same_and_many_small_ones_are_lost():
    moved = {}
    for keep_master in (True, False):
        weight = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
        adam = MixedAdam([weight], keep_master=keep_master, lr=1e-4)
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            adam.step()
        moved[keep_master] = 1 - weight.float().mean().item()
    assert moved[True] == pytest.approx(100 * 1e-4, rel=0.25)
    assert moved[False] == 0


def test_a_large_step_is_the_same_with_and_without_a_master_copy():
    found = []
    for keep_master in (True, False):
        narrow, _ = pair()
        adam = MixedAdam(narrow.parameters(), keep_master=keep_master, lr=0.1)
        backward(narrow, torch.ones(4, 6))
        adam.step()
        found.append([p.detach().clone() for p in narrow.parameters()])
    assert all(torch.equal(p, q) for p, q in zip(*found, strict=True))


def test_a_parameter_without_a_gradient_does_not_move_and_zero_grad_frees():
    narrow, _ = pair()
    adam = MixedAdam(narrow.parameters(), lr=0.1)
    backward(narrow, torch.ones(4, 6))
    narrow[0].bias.grad = None
    before = narrow[0].bias.detach().clone()
    adam.step()
    assert torch.equal(narrow[0].bias, before)
    adam.zero_grad()
    assert "gradient" not in memory.held(narrow, adam)
