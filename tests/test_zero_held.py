"""What a rank of each stage holds, counted by storage, and at most."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rig import run_ranks
from torch import nn
from zero_cases import STAGES

from tpcourse.memory import Peak, peak
from tpcourse.memory.watching import Watcher
from tpcourse.zero import Zero3

NUM_LAYERS = 6


class Gelu(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def chain(dtype=torch.bfloat16):
    torch.manual_seed(0)
    return nn.Sequential(*(Gelu(24, 50) for _ in range(NUM_LAYERS))).to(dtype)


def backward(zero):
    zero.zero_grad()
    zero.module(torch.ones(1, 24, dtype=next(zero.module.parameters()).dtype)).square().sum().backward()


def _held(rank, group):
    """Bytes a weight after the second backward, and after the step, by stage."""
    found = {}
    for stage, kind in STAGES.items():
        zero = kind(chain(), dp=group, bucket_mb=0.004, lr=0.01)
        count = sum(weight.numel() for weight in zero.module.parameters())
        backward(zero)
        zero.step()
        backward(zero)
        after = zero.held.per(count)
        zero.step()
        found[stage] = after, sum(after.values()), zero.held.total / count
    return found


def _held_at_the_end(rank, group, kind):
    """Bytes a weight after the second backward, of one kind."""
    zero = kind(chain(), dp=group, bucket_mb=0.004, lr=0.01)
    backward(zero)
    zero.step()
    backward(zero)
    return zero.held.total / sum(weight.numel() for weight in zero.module.parameters())


FORMULAS = {1: {1: 16, 2: 16, 3: 16}, 2: {1: 10, 2: 9, 3: 8}, 4: {1: 7, 2: 5.5, 3: 4}}


@pytest.mark.parametrize("p", FORMULAS)
def test_bytes_a_weight_are_those_of_the_formulas_within_three_per_cent(p):
    for found in run_ranks(_held, p):
        for stage, (kinds, total, later) in found.items():
            assert total == pytest.approx(FORMULAS[p][stage], rel=0.03), (stage, kinds)
            assert later <= total


class Bytes(Watcher):
    """After each operation: what the block has made, and the gathered weights, which were there as names."""

    def __init__(self, seen, flats):
        super().__init__(seen)
        self.flats, self.most = flats, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        gathered = sum(flat.whole.untyped_storage().nbytes() for flat in self.flats)
        self.most = max(self.most, self.now + gathered)
        return result


def peak_of(zero):
    """The most bytes of states, gathered weights, gradients and activations in one forward and backward."""
    backward(zero)
    zero.step()
    zero.zero_grad()
    there = zero.held.total
    with Bytes(Peak(), zero.flats) as seen:
        backward(zero)
    return there + seen.most


def _peak(rank, group, kind):
    p = dist.get_world_size(group)
    zero = kind(chain(), dp=group, lr=0.01)
    count = sum(weight.numel() for weight in zero.module.parameters())
    return peak_of(zero), 16 * count / p, 4 * count / NUM_LAYERS


def within(found):
    """Whether each rank's peak is at most states/N and two layers of weights and gradients."""
    return [peak <= states + 2 * layer for peak, states, layer in found]


@pytest.mark.parametrize("p", [2, 4])
def test_the_peak_of_stage_3_is_at_most_the_states_of_a_rank_and_two_layers(p):
    found = run_ranks(_peak, p, Zero3)
    assert all(within(found)), found


def _step_peaks(rank, group, kinds):
    """For each stage: the most bytes that a step adds, the same in elements of the largest piece, and of all."""
    found = []
    for kind in kinds:
        zero = kind(chain(), dp=group, bucket_mb=0.004, lr=0.01)
        for _ in range(2):
            backward(zero)
            zero.reduce()
            with peak() as seen:
                zero.step()
        sizes = [flat.n for flat in zero.flats]
        found.append((seen.bytes, max(sizes), sum(sizes), seen.left))
    return found


@pytest.mark.parametrize("p", [1, 2, 4])
def test_a_step_needs_the_float32_gradient_and_two_arrays_of_adam_for_one_bucket_at_a_time(p):
    for rank in run_ranks(_step_peaks, p, list(STAGES.values())):
        for most, largest, of_all, left in rank:
            assert 4 * largest <= most <= 12 * largest < 4 * of_all
            assert left == 0


def _empty(rank, group):
    """Bytes of the weights' own memory between calls."""
    zero = Zero3(chain(), dp=group, lr=0.01)
    seen = [zero.held["parameter"]]
    with torch.no_grad():
        zero.module(torch.ones(1, 24, dtype=torch.bfloat16))
    seen.append(sum(weight.untyped_storage().nbytes() for weight in zero.module.parameters()))
    backward(zero)
    seen.append(sum(weight.untyped_storage().nbytes() for weight in zero.module.parameters()))
    with zero.whole():
        seen.append(sum(weight.nbytes for weight in zero.module.parameters()))
        whole = zero.held["parameter"]
    return seen, whole


def test_between_calls_the_memory_of_whole_weights_is_released():
    for (pieces, after_forward, after_backward, size), whole in run_ranks(_empty, 2):
        assert after_forward == after_backward == 0
        assert pieces == pytest.approx(size / 2, rel=0.01) and whole == pytest.approx(1.5 * size, rel=0.01)
