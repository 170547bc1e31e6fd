"""What ZeRO is told of a GPT that `tp` splits: gradients finished some at a time, each element counted once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from block_cases import CLASSIC, MODERN, random_state, token_batch
from rig import run_ranks

from tpcourse.block import GPT, counted_once, finish_gradients, finish_some, from_one_device, gradient_norm

CASES = [(MODERN, True), (MODERN, False), (replace(CLASSIC, kv_heads=1), True), (CLASSIC, False)]
"""With sequence parallelism and without; at 2 and 4 ranks, K/V heads shared and not."""


def backward(config, split, group):
    model = GPT(config, tp=group, sequence_parallel=split, dtype=torch.float64)
    from_one_device(model, random_state(config))
    model.loss(*token_batch(config)).backward()
    return model


def _finished(rank, group, cases):
    """Names of gradients that are not the same if some are finished at a time as all at once."""
    found = []
    for config, split in cases:
        once, parts = backward(config, split, group), backward(config, split, group)
        finish_gradients(once)
        finish, weights = finish_some(parts), list(parts.parameters())
        for some in (weights[:1], weights[1:4], weights[4:]):
            finish(some)
        pairs = zip(once.named_parameters(), parts.parameters(), strict=True)
        found.append([name for (name, a), b in pairs if not torch.allclose(a.grad, b.grad, rtol=1e-13, atol=0)])
    return found


@pytest.mark.parametrize("p", [2, 4])
def test_gradients_finished_some_at_a_time_are_those_finished_at_once(p):
    assert run_ranks(_finished, p, CASES) == [[[]] * len(CASES)] * p


def test_on_one_device_nothing_is_left_to_finish():
    model = backward(MODERN, False, None)
    before = [weight.grad.clone() for weight in model.parameters()]
    finish_some(model)(list(model.parameters()))
    assert all(torch.equal(weight.grad, old) for weight, old in zip(model.parameters(), before, strict=True))


def _norms(rank, group, cases):
    """The norm by shares, by shares of 1, and the block's own."""
    found = []
    for config, split in cases:
        model = backward(config, split, group)
        finish_gradients(model)
        share = counted_once(model)
        squares = [
            torch.stack(
                [(weight.grad.square() * part(name, weight)).sum() for name, weight in model.named_parameters()]
            )
            for part in (share, lambda name, weight: 1.0)
        ]
        total = torch.stack(squares).sum(1)
        dist.all_reduce(total, group=group)
        masks = [name for name, weight in model.named_parameters() if isinstance(share(name, weight), torch.Tensor)]
        found.append((total.sqrt().tolist(), gradient_norm(model).item(), masks))
    return found


@pytest.mark.parametrize("p", [2, 4])
def test_elements_counted_once_give_the_norm_and_counted_by_each_rank_too_much(p):
    for rank in run_ranks(_norms, p, CASES):
        for (config, _), ((once, by_each), expected, masks) in zip(CASES, rank, strict=True):
            assert once == pytest.approx(expected, rel=1e-13)
            assert by_each > expected * (1 + 1e-6)
            shared = (config.kv_heads or config.H) < p
            assert all(".qkv." in name for name in masks) and bool(masks) <= shared
