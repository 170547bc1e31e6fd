"""A GPT whose products and tokens' collectives run at the same time is the same GPT."""

from __future__ import annotations

import pytest
import torch
from block_cases import CLASSIC, MODERN, random_state, token_batch, wrong_tensors
from rig import run_ranks

from tpcourse.block import GPT, finish_gradients, from_one_device, to_one_device

FORMS = ("ring", "auto", "popular")


def _step(model, config):
    """Loss and whole gradients of one step from random weights."""
    from_one_device(model, random_state(config))
    loss = model.loss(*token_batch(config))
    loss.backward()
    finish_gradients(model)
    for weight in model.parameters():
        weight.data = weight.grad
    return to_one_device(model) | {"loss": loss.detach()}


def _wrong(rank, group, config):
    expected, wrong = _step(GPT(config, dtype=torch.float64), config), []
    for form in FORMS:
        how = {"sequence_parallel": True, "regather": True, "overlap": form, "dtype": torch.float64}
        wrong += wrong_tensors(_step(GPT(config, tp=group, **how), config), expected, rtol=1e-11)
    return wrong


@pytest.mark.parametrize("config", [MODERN, CLASSIC], ids=["modern", "classic"])
@pytest.mark.parametrize("p", [2, 4])
def test_loss_and_all_gradients_with_overlap_are_one_device_s(p, config):
    assert run_ranks(_wrong, p, config) == [[]] * p


def _forms(rank, group):
    return GPT(MODERN, tp=group, sequence_parallel=True, overlap="ring").new_pass(8).overlap


def test_the_form_reaches_the_products_and_one_device_has_none():
    assert run_ranks(_forms, 2) == ["ring", "ring"]
    assert GPT(MODERN, sequence_parallel=True, overlap="ring").new_pass(8).overlap == "serial"


def test_overlap_without_split_tokens_has_nothing_to_hide():
    with pytest.raises(ValueError, match="overlap = 'ring'.*sequence_parallel=True"):
        GPT(MODERN, overlap="ring")
