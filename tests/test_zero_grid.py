"""ZeRO over tensor parallelism: a GPT that tp splits, whose parts dp shards, on a grid of 2 x 2."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import pytest
import torch
import torch.distributed as dist
from block_cases import CLASSIC, MODERN, random_state, token_batch, wrong_tensors
from rig import run_ranks
from zero_cases import STAGES

from tpcourse.block import GPT, clip_gradients, counted_once, finish_some, from_one_device, to_one_device

CONFIGS = {"modern": replace(MODERN, kv_heads=1), "classic": CLASSIC}
"""One K/V head that both ranks of tp hold; a vocabulary of 259, of which they hold 130 and 129."""
MAX_NORM, B = 0.5, 4
BUCKET_MB = 0.0249
"""Between 129 and 130 rows of 24 float64."""
OPTIONS = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-4}
"""A K bias moves no softmax: its gradient is rounding alone, and Adam's usual eps would make steps of that."""


def groups_of(model):
    weights = list(model.parameters())
    return [
        {"params": [w for w in weights if w.dim() > 1]},
        {"params": [w for w in weights if w.dim() == 1], "weight_decay": 0.0},
    ]


@cache
def one_device(name, steps):
    """Weights after some steps, and the norms."""
    config = CONFIGS[name]
    model = GPT(config, dtype=torch.float64)
    from_one_device(model, random_state(config))
    optimizer, norms = torch.optim.AdamW(groups_of(model), **OPTIONS), []
    tokens, targets = token_batch(config, B)
    for _ in range(steps):
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


def _train(rank, group, name, steps, share=counted_once, **options):
    """For each stage: weights as one device's, norms, and which weights share a flat array."""
    (tp, dp), config, found = grid(rank), CONFIGS[name], {}
    tokens, targets = (part.chunk(2)[rank // 2] for part in token_batch(config, B))
    for stage, kind in STAGES.items():
        model = GPT(config, tp=tp, dtype=torch.float64, **options)
        from_one_device(model, random_state(config))
        how = {"groups": groups_of(model), "finish": finish_some(model), "bucket_mb": BUCKET_MB, **OPTIONS}
        zero, norms = kind(model, dp=dp, **how), []
        for _ in range(steps):
            zero.zero_grad()
            model.loss(tokens, targets).backward()
            norms.append(zero.clip(MAX_NORM, tp=tp, share=share(model)).item())
            zero.step()
        with zero.whole():
            found[stage] = to_one_device(model), norms, [flat.names for flat in zero.flats]
    return found


@pytest.mark.parametrize(
    ("name", "steps", "options"),
    [("modern", 10, {}), ("classic", 3, {"sequence_parallel": True, "recompute": "full"})],
)
def test_steps_of_a_gpt_on_2_x_2_ranks_are_those_of_one_device(name, steps, options):
    expected, norms = one_device(name, steps)
    ranks = run_ranks(partial(_train, **options), 4, name, steps)
    for found in ranks:
        for stage, (state, seen, _) in found.items():
            assert seen == pytest.approx(norms, rel=1e-12), stage
            assert wrong_tensors(state, expected) == [], stage
    if name == "classic":
        assert ranks[0][2][2] != ranks[1][2][2], "tp's ranks cut other buckets, as they hold 130 and 129 words"


def twice(model):
    """The mistake: what tp's ranks hold whole is counted by each."""
    return lambda name, weight: 1.0


def test_a_norm_that_counts_whole_weights_on_every_rank_of_tp_is_too_large():
    _, norms = one_device("modern", 1)
    for found in run_ranks(_train, 4, "modern", 1, twice):
        assert all(seen[0] > norms[0] * (1 + 1e-6) for _, seen, _ in found.values())
