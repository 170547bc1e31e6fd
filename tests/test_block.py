"""The GPT on one device: an ordinary GPT, whatever its options."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from block_cases import CLASSIC, MODERN, plain_loss, random_state, token_batch, wrong_tensors

from tpcourse.block import GPT, LAYOUTS, GPTConfig, from_one_device, initial, layout_of, to_one_device

OPTIONS = {
    "modern": MODERN,
    "classic": CLASSIC,
    "layer norm without bias": replace(MODERN, norm="layer"),
    "rms norm with biases": replace(CLASSIC, norm="rms"),
    "gelu": replace(MODERN, mlp="gelu"),
    "swiglu with biases": replace(CLASSIC, mlp="swiglu"),
    "learned positions": replace(MODERN, rotary=False),
    "rotary with biases": replace(CLASSIC, rotary=True),
    "a K/V head each": replace(MODERN, kv_heads=12),
    "one K/V head, unfused": replace(MODERN, kv_heads=1, attention="unfused"),
    "fused with biases": replace(CLASSIC, attention="fused"),
    "untied": replace(MODERN, tied=False),
    "tied with biases": replace(CLASSIC, tied=True),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_loss_and_all_gradients_are_those_of_a_gpt_in_plain_torch(name):
    config = OPTIONS[name]
    state, (tokens, targets) = random_state(config), token_batch(config)
    weights = {name: value.requires_grad_() for name, value in state.items()}
    expected = plain_loss(weights, config, tokens, targets)
    gradients = dict(zip(weights, torch.autograd.grad(expected, list(weights.values())), strict=True))
    model = GPT(config, dtype=torch.float64)
    from_one_device(model, state)
    loss = model.loss(tokens, targets)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert wrong_tensors({name: w.grad for name, w in model.named_parameters()}, gradients) == []


@pytest.mark.parametrize("config", [MODERN, CLASSIC], ids=["modern", "classic"])
def test_a_token_sees_no_later_one_and_shorter_texts_are_allowed(config):
    model, (tokens, _) = GPT(config, dtype=torch.float64), token_batch(config)
    other = tokens.clone()
    other[:, 4:] = (other[:, 4:] + 1) % config.V
    here, there = model(tokens), model(other)
    assert torch.equal(here[:, :4], there[:, :4]) and not torch.isclose(here[:, 4:], there[:, 4:]).all(-1).any()
    torch.testing.assert_close(model(tokens[:, :4]), here[:, :4], rtol=1e-12, atol=1e-12)


def test_dropout_draws_other_masks_in_every_training_forward_and_none_in_evaluation():
    for attention in ("fused", "unfused"):
        model, (tokens, _) = GPT(replace(MODERN, dropout=0.2, attention=attention)), token_batch(MODERN)
        assert not torch.equal(model(tokens), model(tokens))
        model.eval()
        assert torch.equal(model(tokens), model(tokens))
        assert model.forwards == 2


def test_dropout_leaves_torch_s_own_random_numbers_alone():
    model, (tokens, _) = GPT(replace(MODERN, dropout=0.2)), token_batch(MODERN)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    model(tokens)
    assert torch.equal(torch.rand(2), expected)


def test_initial_weights_follow_from_seed_and_name_alone():
    model = GPT(MODERN, seed=5)
    shape = model.shards["blocks.1.mlp.down.weight"].shape
    assert torch.equal(model.blocks[1].mlp.down.weight, initial("blocks.1.mlp.down.weight", shape, seed=5, L=2))
    for name, seed in (("blocks.0.mlp.down.weight", 5), ("blocks.1.mlp.down.weight", 6)):
        assert not torch.equal(model.blocks[1].mlp.down.weight, initial(name, shape, seed=seed, L=2))
    wide = GPT(GPTConfig(V=300, T=8, D=64, H=4, L=8))
    assert wide.blocks[3].attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert wide.blocks[3].attention.out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)


def test_a_tied_weight_is_one_parameter():
    names = [name for name, _ in GPT(MODERN).named_parameters()]
    assert "tokens.weight" in names and "head.weight" not in names
    assert set(GPT(MODERN).state_dict()) == set(names)


def test_every_weight_has_a_layout_and_every_layout_a_weight():
    models = [GPT(config) for config in (MODERN, CLASSIC)]
    found = {layout_of(name) for model in models for name, _ in model.named_parameters()}
    assert found == set(LAYOUTS.values())


def test_the_plain_state_dict_is_the_one_device_model_s():
    model = GPT(CLASSIC, seed=1)
    other = GPT(CLASSIC, seed=2)
    other.load_state_dict(to_one_device(model))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def state_without(name):
    state = random_state(CLASSIC)
    state.pop(name)
    return state


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: replace(MODERN, D=0), "D = 0 must be a whole number"),
        (lambda: replace(MODERN, H=5), "H = 5 heads do not share 2 K/V heads evenly"),
        (lambda: replace(MODERN, D=26), "D = 26 does not divide by H = 12 heads: use D = 24 or 36"),
        (lambda: replace(MODERN, D=36), "a head is 3 wide"),
        (lambda: replace(MODERN, norm="batch"), "norm = 'batch' is unknown: use 'rms' or 'layer'"),
        (lambda: replace(MODERN, dropout=1.0), "dropout = 1.0"),
        (lambda: GPT(MODERN, regather=True), "regather=True gathers tokens again, but sequence_parallel=False"),
        (lambda: GPT(MODERN, recompute="some"), "recompute = 'some' is unknown"),
        (lambda: GPT(CLASSIC)(torch.zeros(1, 10, dtype=torch.long)), "10 tokens, but the model learned T = 9"),
        (lambda: GPT(MODERN)(torch.full((1, 3), 261)), "261 is not in a vocabulary of V = 261"),
        (lambda: GPT(MODERN, layouts={"*norm*": "whole"}), "no line of the table of layouts fits the weight tokens"),
        (lambda: GPT(MODERN, layouts={"*": "tiles"}), "the layout 'tiles' of tokens.weight is unknown"),
        (lambda: from_one_device(GPT(CLASSIC), state_without("norm.bias")), "the state dict has no norm.bias"),
        (lambda: from_one_device(GPT(MODERN), random_state(replace(MODERN, tied=False))), "head.weight.*tied=False"),
        (lambda: from_one_device(GPT(MODERN), random_state(replace(MODERN, F=8))), r"\[24, 8\], but .* \[24, 20\]"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_numbers(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_hidden_width_and_kv_heads_follow_from_the_other_sizes():
    sizes = {"V": 9, "T": 4, "D": 50, "H": 5, "L": 1}
    assert (GPTConfig(**sizes).kv_heads, GPTConfig(**sizes).F, GPTConfig(**sizes, mlp="gelu").F) == (5, 136, 200)
