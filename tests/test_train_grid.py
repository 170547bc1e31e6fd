"""The training loop on grids of ranks: the losses of one device, and ranks that find back to each other."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from ledger_help import logged
from rig import run_ranks
from torch import nn
from train_cases import SIZES, Broken, Halfway, break_off, make, same

from tpcourse.block import GPT, GPTConfig
from tpcourse.train import Trainer, source_tokens

OPTIMIZER = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def _grid(rank, dp_size, tp_size):
    """This rank's groups of a grid of dp_size rows."""
    groups = {"tp": None, "dp": None}
    rows = [[row * tp_size + column for column in range(tp_size)] for row in range(dp_size)]
    for axis, lines in (("tp", rows), ("dp", [list(column) for column in zip(*rows, strict=True)])):
        for ranks in lines:
            made = dist.new_group(ranks)
            groups[axis] = made if rank in ranks and len(ranks) > 1 else groups[axis]
    return groups


def _trained(rank, group, dp_size, tp_size, sequence_parallel):
    trainer = make(**_grid(rank, dp_size, tp_size), sequence_parallel=sequence_parallel)
    return trainer.advance(6)


@pytest.mark.parametrize(("dp_size", "tp_size", "sequence_parallel"), [(1, 2, True), (3, 1, False), (2, 2, False)])
def test_losses_on_a_grid_of_ranks_are_those_of_one_device(dp_size, tp_size, sequence_parallel):
    expected = make().advance(6)
    for losses in run_ranks(_trained, dp_size * tp_size, dp_size, tp_size, sequence_parallel):
        assert losses == pytest.approx(expected, rel=1e-10)


def _unfinished(rank, group, steps):
    """Rank 1 breaks off in its optimizer, after the last call of step 2; the others finish that step."""
    straight, broken = make(tp=group, dropout=0.2), make(tp=group, dropout=0.2)
    straight.advance(steps)
    if rank == 1:
        Halfway(broken, 2, break_off)
    try:
        broken.advance(3)
    except Broken:
        assert rank == 1
    at = broken.step
    broken.advance(0)
    common = broken.step
    broken.advance(steps - common)
    return at, common, same(broken, straight)


def test_a_rank_that_was_a_step_further_goes_back_to_the_others():
    assert run_ranks(_unfinished, 2, 6) == [(3, 2, True), (2, 2, True)]


def _apart(rank, group):
    trainer = make()  # on its own
    trainer.advance(3 if rank else 0)
    trainer.tp = group
    with pytest.raises(ValueError, match="at steps 0 to 3: no state is common to all"):
        trainer.advance(1)


def test_ranks_that_cannot_meet_are_told_so_on_each_of_them():
    run_ranks(_apart, 2)


def _calls(rank, group):
    trainer = make(tp=group)
    return [(event.op, event.numel, event.reduction) for event in logged(trainer.advance, 0).events]


def test_to_agree_costs_one_call_with_two_numbers():
    assert run_ranks(_calls, 2) == [[("all_reduce", 2, "min")]] * 2


def _left(rank, group):
    split, whole = GPT(GPTConfig(**SIZES), tp=group), GPT(GPTConfig(**SIZES))
    with pytest.raises(ValueError, match=re.escape("split over 2 ranks, the trainer over none: pass the same group")):
        Trainer(split, OPTIMIZER, source_tokens(99), num_sequences=2, length=8)
    with pytest.raises(ValueError, match="num_sequences = 1 for 2 dp ranks: each needs one, give 2 or more"):
        Trainer(whole, OPTIMIZER, source_tokens(99), num_sequences=1, length=8, dp=group)


def test_groups_that_do_not_fit_are_refused_with_the_fix():
    run_ranks(_left, 2)
