"""Ten AdamW steps of each stage end with the weights of one device, and with those of torch's own shards."""

from __future__ import annotations

import pytest
import torch
from rig import run_ranks
from zero_cases import STEPS, advance, largest_error, make, new_model, on_one_device, state_of

RTOL = 1e-12


def _train(rank, group, stage, micro_batches=1, syncs=False, steps=STEPS, **options):
    """The weights and norms after some steps; ranks start from weights of their own."""
    zero = make(stage, new_model(seed=rank), group, **options)
    norms = advance(zero, rank, group, range(steps), micro_batches=micro_batches, syncs=syncs)
    with zero.whole():
        return state_of(zero.module), norms


def wrong(found, steps=STEPS, rtol=RTOL):
    """Ranks that do not end as one device does, and by how much."""
    expected, norms = on_one_device(steps)
    errors = [largest_error(state, expected) for state, _ in found]
    assert all(seen == pytest.approx(norms, rel=rtol) for _, seen in found)
    return {rank: error for rank, error in enumerate(errors) if not error <= rtol}


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_ten_clipped_adamw_steps_are_those_of_one_device(stage, p):
    assert wrong(run_ranks(_train, p, stage)) == {}


def _variants(rank, group, cases):
    return [_train(rank, group, steps=3, **case) for case in cases]


VARIANTS = [
    *({"stage": stage, "micro_batches": 3, "syncs": syncs} for stage in (1, 2, 3) for syncs in (False, True)),
    {"stage": 3, "prefetch": False},
    {"stage": 3, "layers": []},  # all of it is layer 0
    {"stage": 1, "bucket_mb": 25},
    {"stage": 2, "bucket_mb": 1e-6},  # a bucket for each weight
]


@pytest.mark.parametrize("p", [2, 3])
def test_micro_batches_with_and_without_communication_buckets_and_prefetch_change_nothing(p):
    found = run_ranks(_variants, p, VARIANTS)
    for number, case in enumerate(VARIANTS):
        assert wrong([rank[number] for rank in found], steps=3) == {}, case


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_without_a_group_it_is_one_device(stage):
    assert wrong([_train(0, None, stage)]) == {}


def _reductions(rank, group, stage):
    """Gradients that add up over backwards, also when some of them were averaged already."""
    zero, twin = make(stage, new_model(), group), make(stage, new_model(), None)
    for each in (zero, twin):
        for seed in (1, 2):
            x = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            each.module(x).square().sum().backward()
            each.reduce()
            each.reduce()
    return zero.norm().item(), twin.norm().item()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_add_up_until_zero_grad_and_are_averaged_once(stage):
    for norm, expected in run_ranks(_reductions, 2, stage):
        assert norm == pytest.approx(expected, rel=RTOL)
