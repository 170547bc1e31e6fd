"""ZeRO over tensor parallelism: a GPT that tp splits, whose parts dp shards, on a grid of 2 x 2."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
import torch.distributed as dist
from block_cases import CLASSIC, MODERN, random_state, token_batch, wrong_tensors
from rig import run_ranks
from zero_cases import STAGES

from tpcourse.block import GPT, clip_gradients, from_one_device, to_one_device
from tpcourse.sequence import sum_gradients

CONFIGS = {"modern": MODERN, "classic": CLASSIC}
STEPS, MAX_NORM, B = 10, 0.5, 4
OPTIONS = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-4}
"""A K bias moves no softmax: its gradient is rounding alone, and Adam's usual eps would make steps of that."""


def groups_of(model):
    weights = list(model.parameters())
    return [
        {"params": [w for w in weights if w.dim() > 1]},
        {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0},
    ]


def counted_once(model):
    """Which elements of a weight this tp rank counts: those that it is the first to hold."""

    def share(name, weight):
        mask = torch.zeros(weight.shape)
        shard = model.shards[name]
        for piece, view in zip(shard.pieces, shard.views(mask), strict=True):
            view.fill_(piece.is_first)
        return mask

    return share


def sums_of(model):
    """What `finish` does with sequence parallelism: add up over tp the gradients of weights that tp holds whole."""
    whole = {id(w) for name, w in model.named_parameters() if model.shards[name].layout == "whole"}
    return lambda weights: sum_gradients([w.grad for w in weights if id(w) in whole], tp=model.tp)


@cache
def one_device(name):
    """Weights after ten steps, and the norms."""
    config = CONFIGS[name]
    model = GPT(config, dtype=torch.float64)
    from_one_device(model, random_state(config))
    optimizer, norms = torch.optim.AdamW(groups_of(model), **OPTIONS), []
    tokens, targets = token_batch(config, B)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model.loss(tokens, targets).backward()
        norms.append(clip_gradients(model, MAX_NORM).item())
        optimizer.step()
    return to_one_device(model), norms


def grid(rank):
    """This rank's groups of a 2 x 2 grid: tp, dp."""
    made = {axis: [dist.new_group(ranks) for ranks in lines] for axis, lines in LINES.items()}
    return made["tp"][rank // 2], made["dp"][rank % 2]


LINES = {"tp": [[0, 1], [2, 3]], "dp": [[0, 2], [1, 3]]}


def _train(rank, group, name, share=counted_once, **options):
    """Weights as one device's, and norms, for each stage."""
    (tp, dp), config, found = grid(rank), CONFIGS[name], {}
    tokens, targets = (part.chunk(2)[rank // 2] for part in token_batch(config, B))
    for stage, kind in STAGES.items():
        model = GPT(config, tp=tp, dtype=torch.float64, **options)
        from_one_device(model, random_state(config))
        finish = sums_of(model) if model.here.sequence_parallel else None
        zero, norms = kind(model, dp=dp, groups=groups_of(model), finish=finish, **OPTIONS), []
        for _ in range(STEPS):
            zero.zero_grad()
            model.loss(tokens, targets).backward()
            norms.append(zero.clip(MAX_NORM, tp=tp, share=share(model)).item())
            zero.step()
        with zero.whole():
            found[stage] = to_one_device(model), norms
    return found


@pytest.mark.parametrize(
    ("name", "options"), [("modern", {}), ("classic", {"sequence_parallel": True, "recompute": "full"})]
)
def test_ten_steps_of_a_gpt_on_2_x_2_ranks_are_those_of_one_device(name, options):
    expected, norms = one_device(name)
    for found in run_ranks(partial(_train, **options), 4, name):
        for stage, (state, seen) in found.items():
            assert seen == pytest.approx(norms, rel=1e-12), stage
            assert wrong_tensors(state, expected) == [], stage


def twice(model):
    """The mistake: what tp's ranks hold whole is counted by each."""
    return lambda name, weight: 1.0


def test_a_norm_that_counts_whole_weights_on_every_rank_of_tp_is_too_large():
    _, norms = one_device("modern")
    for found in run_ranks(_train, 4, "modern", twice):
        assert all(seen[0] > norms[0] * (1 + 1e-6) for _, seen in found.values())
