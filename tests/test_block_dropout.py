"""Dropout on ranks, and recomputation: masks agree where tensors are equal, differ where they are split."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from block_cases import CLASSIC, MODERN, token_batch, wrong_tensors
from rig import run_ranks

from tpcourse.block import GPT, finish_gradients, to_one_device

DROPS = {
    "fused": replace(MODERN, dropout=0.3),
    "unfused": replace(CLASSIC, dropout=0.3),
}


def _streams(rank, group, config):
    """The residual stream after each block, and the logits' gradient-ready loss."""
    model, streams = GPT(config, tp=group, dtype=torch.float64), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, args, y: streams.append(y.detach()))
    loss = model.loss(*token_batch(config))
    loss.backward()
    finish_gradients(model)
    norm_gradients = [w.grad for name, w in model.named_parameters() if model.shards[name].layout == "whole"]
    return [*streams, loss.detach(), *norm_gradients]


@pytest.mark.parametrize("attention", DROPS)
def test_the_residual_stream_and_the_gradients_of_whole_weights_are_equal_on_all_ranks(attention):
    first, *others = run_ranks(_streams, 4, DROPS[attention])
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    without = run_ranks(_streams, 4, replace(DROPS[attention], dropout=0.0))[0]
    assert not torch.isclose(first[0], without[0]).any(-1).any(), "dropout did something"


def _attention_of_equal_heads(rank, group, config):
    """What attention makes of the same q, k and v on every rank, and of dropout of the same x, in a pass and again."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 6, 3, 4, generator=generator)
    found = {}
    for split in (False, True):
        model = GPT(config, tp=group, sequence_parallel=split)
        attention, here = model.blocks[0].attention, model.new_pass(6)
        core = attention.fused if config.attention == "fused" else attention.unfused
        found[split] = [core(q, q, q, here), core(q, q, q, here), here.drop(q, "site")]
        other = model.new_pass(6)
        found[split] += [core(q, q, q, other), other.drop(q, "site")]
    return found


@pytest.mark.parametrize("attention", DROPS)
@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["TP", "TP+SP"])
def test_attention_dropout_differs_between_ranks_and_residual_dropout_where_tokens_are_split(
    attention, sequence_parallel
):
    found = [each[sequence_parallel] for each in run_ranks(_attention_of_equal_heads, 2, DROPS[attention])]
    (mixed, again, dropped, next_mixed, next_dropped), (other, _, other_dropped, *_) = found
    assert torch.equal(mixed, again), "a pass that is computed again draws the same masks"
    assert not torch.equal(mixed, other)
    assert torch.equal(dropped, other_dropped) is not sequence_parallel
    assert not torch.equal(mixed, next_mixed) and not torch.equal(dropped, next_dropped), "the next pass draws others"


def _recomputed(rank, group, config, sequence_parallel):
    """Names of gradients that differ between keeping and recomputing."""
    results = []
    for recompute in ("none", "selective", "full"):
        model = GPT(config, tp=group, sequence_parallel=sequence_parallel, recompute=recompute, dtype=torch.float64)
        tokens, targets = token_batch(config)
        model.loss(tokens, targets).backward()
        loss = model.loss(tokens, targets)
        model.loss(tokens[:1], targets[:1])  # a pass between forward and backward: other masks, not backpropagated
        loss.backward()
        finish_gradients(model)
        for weight in model.parameters():
            weight.data = weight.grad
        results.append(to_one_device(model) | {"loss": loss.detach()})
    return [wrong_tensors(found, results[0]) for found in results[1:]]


@pytest.mark.parametrize("attention", DROPS)
@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["TP", "TP+SP"])
def test_recomputing_gives_the_same_gradients_with_dropout_on(attention, sequence_parallel):
    assert run_ranks(_recomputed, 2, DROPS[attention], sequence_parallel) == [[[], []]] * 2
