"""Ten AdamW steps of each stage end with the weights of one device, and with those of torch's own shards."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from rig import run_ranks
from zero_cases import (
    EXAMPLES,
    MAX_NORM,
    SMALL,
    STAGES,
    STEPS,
    advance,
    examples,
    groups_of,
    largest_error,
    make,
    new_model,
    on_one_device,
    squares,
    state_of,
)

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
def test_ten_clipped_adamw_steps_on_two_micro_batches_each_are_those_of_one_device(stage, p):
    assert wrong(run_ranks(_train, p, stage, 2)) == {}


def _variants(rank, group, cases):
    return [_train(rank, group, steps=3, **case) for case in cases]


VARIANTS = [
    *({"stage": stage} for stage in (1, 2, 3)),
    *({"stage": stage, "micro_batches": 3, "syncs": True} for stage in (2, 3)),
    {"stage": 3, "prefetch": False},
    {"stage": 3, "layers": []},  # all of it is layer 0
    {"stage": 1, "bucket_mb": 25},
    {"stage": 2, "bucket_mb": 1e-6},  # a bucket for each weight
]


def test_whole_batches_and_micro_batches_that_communicate_buckets_and_prefetch_change_nothing():
    found = run_ranks(_variants, 3, VARIANTS)
    for number, case in enumerate(VARIANTS):
        assert wrong([rank[number] for rank in found], steps=3) == {}, case


def _scheduled(rank, group):
    """For each stage: learning rates and warnings of a schedule, step counts, the weights."""
    found = []
    for stage in STAGES:
        zero = make(stage, new_model(), group)
        schedule = torch.optim.lr_scheduler.StepLR(zero.optimizer, step_size=1, gamma=0.5)
        rates = []
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for step in range(3):
                advance(zero, rank, group, steps=range(step, step + 1))
                schedule.step()
                rates.append(schedule.get_last_lr())
        counts = {state["step"].item() for state in zero.optimizer.state.values()}
        said = [str(each.message) for each in seen if "step" in str(each.message)]
        with zero.whole():
            found.append((rates, said, counts, state_of(zero.module)))
    return found


def test_a_learning_rate_scheduler_sees_one_step_a_step_and_each_piece_is_stepped_once():
    model = new_model()
    optimizer = torch.optim.AdamW(groups_of(model), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for step in range(3):
        optimizer.zero_grad()
        squares(model, *examples(step)).div(EXAMPLES).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        schedule.step()
    for rates, said, counts, state in (each for rank in run_ranks(_scheduled, 2) for each in rank):
        assert rates == [[0.005, 0.01], [0.0025, 0.005], [0.00125, 0.0025]] and said == [] and counts == {3.0}
        assert largest_error(state, state_of(model)) <= RTOL


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_without_a_group_it_is_one_device(stage):
    assert wrong([_train(0, None, stage)]) == {}


def finished(stage, bucket_mb):
    """Names of the weights that `finish` gets, call by call, in two backwards of which one sends nothing."""
    model, calls = new_model(), []
    name_of = {id(weight): name for name, weight in model.named_parameters()}
    finish = lambda weights: calls.append([name_of[id(weight)] for weight in weights])  # noqa: E731
    zero = make(stage, model, None, bucket_mb=bucket_mb, finish=finish)
    x = torch.ones(2, 5, dtype=torch.float64)
    with zero.no_sync() if hasattr(zero, "no_sync") else nullcontext():
        model(x).sum().backward()
    assert calls == []
    reached = model if stage == 3 else model.enter  # the others have gradients of the first backward
    reached(x).sum().backward()
    zero.step()
    return calls


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_finish_gets_each_gradient_once_in_an_order_that_depends_on_no_bucket(stage):
    calls = finished(stage, 1e-6)
    trained = [name for name, weight in new_model().named_parameters() if weight.requires_grad]
    assert sorted(name for names in calls for name in names) == sorted(trained)
    assert calls == finished(stage, 25) == finished(stage, SMALL)


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
