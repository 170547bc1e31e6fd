"""The GPT on ranks is the GPT of one device: its weights, its gradients, and twenty steps of training."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from block_cases import CLASSIC, MODERN, random_state, token_batch, wrong_tensors
from rig import run_ranks
from torch.utils._python_dispatch import TorchDispatchMode

from tpcourse.block import (
    GPT,
    GPTConfig,
    clip_gradients,
    finish_gradients,
    from_one_device,
    shard_of,
    to_one_device,
)
from tpcourse.train import batch, source_tokens

THREE = GPTConfig(V=100, T=8, D=24, H=6, kv_heads=3, F=17, L=1, tied=False)
STEPS = 20


def run(model, config):
    """Loss and whole gradients of one forward and backward from random weights, and the local logits."""
    from_one_device(model, random_state(config))
    tokens, targets = token_batch(config)
    loss = model.loss(tokens, targets)
    loss.backward()
    finish_gradients(model)
    for weight in model.parameters():
        weight.data = weight.grad  # so that to_one_device collects gradients
    return loss.item(), to_one_device(model)


def _wrong_gradients(rank, group, config):
    """Names of the gradients that are not the one-device model's: without and with sequence parallelism."""
    loss, expected = run(GPT(config, dtype=torch.float64), config)
    wrong = []
    for split in (False, True):
        model = GPT(config, tp=group, sequence_parallel=split, regather=split, dtype=torch.float64)
        found_loss, found = run(model, config)
        wrong.append(wrong_tensors(found, expected) + ["loss"] * (not abs(found_loss / loss - 1) <= 1e-12))
    return wrong


@pytest.mark.parametrize(
    ("config", "p"),
    [(MODERN, 2), (MODERN, 4), (CLASSIC, 2), (CLASSIC, 4), (THREE, 3), (replace(CLASSIC, kv_heads=1), 3)],
    ids=["modern-2", "modern-4", "classic-2", "classic-4", "untied-3", "one-kv-head-3"],
)
def test_loss_and_every_gradient_are_those_of_one_device(config, p):
    assert run_ranks(_wrong_gradients, p, config) == [[[], []]] * p


def _initial(rank, group, configs):
    models = [GPT(config, tp=group, seed=7) for config in configs]
    local = [{name: weight.detach() for name, weight in model.named_parameters()} for model in models]
    return [to_one_device(model) for model in models], local


@pytest.mark.parametrize("p", [2, 3, 4])
def test_initial_weights_are_those_of_one_device_to_the_bit(p):
    configs = [MODERN, CLASSIC, THREE] if p == 3 else [MODERN, CLASSIC]
    configs = [replace(config, kv_heads=3) for config in configs] if p == 3 else configs
    for rank, (wholes, locals_) in enumerate(run_ranks(_initial, p, configs)):
        for config, whole, local in zip(configs, wholes, locals_, strict=True):
            for name, weight in GPT(config, seed=7).named_parameters():
                assert torch.equal(whole[name], weight)
                assert torch.equal(local[name], shard_of(name, weight.shape, config, p, rank).cut(weight.detach()))


class Moved(TorchDispatchMode):
    """Shapes of what is copied to another device or dtype."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        if func is torch.ops.aten._to_copy.default:
            self.shapes.append(tuple(result.shape))
        return result


def _moved(rank, group):
    with Moved() as moved:
        model = GPT(CLASSIC, tp=group, device="meta", dtype=torch.bfloat16)
    return moved.shapes, [tuple(weight.shape) for weight in model.parameters()]


def test_only_a_rank_s_own_part_of_a_weight_goes_to_its_device():
    for moved, local in run_ranks(_moved, 4):
        assert moved == local


LOCAL = {  # of 4 ranks, the first; V and F are not divisible, and there are 2 K/V heads
    "tokens.weight": (66, 24),
    "blocks.0.norm_attention.weight": (24,),
    "blocks.0.attention.qkv.weight": ((3 + 2) * 2, 24),
    "blocks.0.attention.out.weight": (24, 6),
    "blocks.0.norm_mlp.weight": (24,),
    "blocks.0.mlp.gate_up.weight": (2 * 5, 24),
    "blocks.0.mlp.down.weight": (24, 5),
    "norm.weight": (24,),
}
LOCAL_CLASSIC = {
    "tokens.weight": (65, 24),
    "places.weight": (9, 24),
    "head.weight": (65, 24),
    "blocks.1.attention.qkv.weight": (9 * 2, 24),
    "blocks.1.attention.qkv.bias": (9 * 2,),
    "blocks.1.attention.out.weight": (24, 6),
    "blocks.1.attention.out.bias": (24,),
    "blocks.1.mlp.up.weight": (5, 24),
    "blocks.1.mlp.up.bias": (5,),
    "blocks.1.mlp.down.weight": (24, 5),
    "blocks.1.mlp.down.bias": (24,),
}


def _shapes(rank, group, config):
    model = GPT(config, tp=group)
    assert model.num_parameters == sum(weight.numel() for weight in GPT(config).parameters())
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


@pytest.mark.parametrize(("config", "local"), [(MODERN, LOCAL), (CLASSIC, LOCAL_CLASSIC)], ids=["modern", "classic"])
def test_each_layer_that_should_be_split_is(config, local):
    first, *_, last = run_ranks(_shapes, 4, config)
    assert {name: first[name] for name in local} == local
    whole = {name: tuple(weight.shape) for name, weight in GPT(config).named_parameters()}
    split = {name for name in whole if last[name] != whole[name]}
    assert {name for name in whole if "norm" in name or name.endswith(("out.bias", "down.bias", "places.weight"))} == (
        whole.keys() - split
    )


def train(model, config):
    """Losses of the steps, the norms that were clipped, and the whole weights at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text, losses, norms = source_tokens(4000) % config.V, [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model.loss(*batch(text, 2, config.T, step=step))
        loss.backward()
        finish_gradients(model)
        norms.append(clip_gradients(model, 0.5).item())
        optimizer.step()
        losses.append(loss.item())
    return {"losses": torch.tensor(losses), "norms": torch.tensor(norms)} | to_one_device(model)


def _train(rank, group, config, sequence_parallel):
    return train(GPT(config, tp=group, sequence_parallel=sequence_parallel, dtype=torch.float64), config)


@cache
def one_device(config):
    """Twenty steps on one device, once for each model."""
    return train(GPT(config, dtype=torch.float64), config)


@pytest.mark.parametrize("config", [MODERN, CLASSIC], ids=["tied, rotary, 2 K/V heads", "untied, learned, biases"])
@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["TP", "TP+SP"])
@pytest.mark.parametrize("p", [1, 2, 4])
def test_twenty_steps_of_training_are_those_of_one_device(config, sequence_parallel, p):
    expected = one_device(config)
    assert expected["losses"][-1] < expected["losses"][0] - 0.5, "it learns"
    assert expected["norms"].min() > 0.5, "every step is clipped"
    for found in run_ranks(_train, p, config, sequence_parallel):
        assert wrong_tensors(found, expected, rtol=1e-10) == []


def _autocast(rank, group, config):
    """The loss under autocast, in full precision, and the dtypes of the gradients."""
    model, (tokens, targets) = GPT(config, tp=group, sequence_parallel=True, recompute="selective"), token_batch(config)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(tokens, targets)
    loss.backward()
    finish_gradients(model)
    return loss.item(), model.loss(tokens, targets).item(), {weight.grad.dtype for weight in model.parameters()}


def test_under_autocast_products_take_16_bits_and_gradients_the_weights_dtype():
    for config in (MODERN, CLASSIC):
        for loss, exact, dtypes in run_ranks(_autocast, 2, config):
            assert loss != exact and loss == pytest.approx(exact, rel=1e-2) and dtypes == {torch.float32}


REFUSED = {  # what is tried on 4 ranks: words of the error
    "tokens": "3 tokens on 4 ranks leave 1 without any",
    "heads": "num_heads = 6 does not divide by 4 ranks",
    "words": "V = 3 leaves 1 of 4 ranks without a word",
}


def _refused(rank, group):
    tries = {
        "tokens": lambda: GPT(MODERN, tp=group, sequence_parallel=True)(torch.zeros(1, 3, dtype=torch.long)),
        "heads": lambda: GPT(replace(MODERN, H=6, kv_heads=6), tp=group),
        "words": lambda: GPT(replace(MODERN, V=3), tp=group)(torch.zeros(1, 4, dtype=torch.long)),
    }
    said = {}
    for name, call in tries.items():
        with pytest.raises(ValueError) as error:  # noqa: PT011 (compared with its words outside)
            call()
        said[name] = str(error.value)
    return said


def test_sizes_that_do_not_fit_the_ranks_are_refused_with_their_numbers():
    for said in run_ranks(_refused, 4):
        assert all(words in said[name] for name, words in REFUSED.items())
