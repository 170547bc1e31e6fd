"""The GPT on two GPUs: whole weights are never made there, and a step is the CPU's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from block_cases import CLASSIC, MODERN, random_state, token_batch, wrong_tensors
from rig import run_ranks

from tpcourse.block import (
    GPT,
    GPTConfig,
    clip_gradients,
    finish_gradients,
    from_one_device,
    load,
    save,
    to_one_device,
)

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
pytestmark = [pytest.mark.gpu, two_gpus]


def step(model, config):
    """Loss, norm and whole gradients of one step from random weights."""
    from_one_device(model, random_state(config))
    device = model.tokens.weight.device
    loss = model.loss(*(part.to(device) for part in token_batch(config)))
    loss.backward()
    finish_gradients(model)
    norm = clip_gradients(model, 1e9)
    for weight in model.parameters():
        weight.data = weight.grad
    return to_one_device(model) | {"loss": loss.detach().cpu(), "norm": norm.cpu()}


def _wrong(rank, group, config):
    expected, wrong = step(GPT(config, dtype=torch.float64), config), []
    for split in (False, True):
        for recompute in ("none", "selective", "full"):
            options = {"sequence_parallel": split, "regather": split, "recompute": recompute, "dtype": torch.float64}
            wrong += wrong_tensors(step(GPT(config, tp=group, device="cuda", **options), config), expected, rtol=1e-11)
    return wrong


@pytest.mark.parametrize("config", [MODERN, CLASSIC], ids=["modern", "classic"])
def test_loss_norm_and_gradients_on_gpus_are_the_cpu_s(config):
    assert run_ranks(_wrong, 2, config, backend="nccl") == [[], []]


def _peak(rank, group):
    config = GPTConfig(V=32000, T=64, D=1024, H=16, L=2, tied=False)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = GPT(config, tp=group, device="cuda")
    return torch.cuda.max_memory_allocated() - before, sum(weight.nbytes for weight in model.parameters())


def test_making_the_model_never_holds_more_than_a_rank_s_part_on_its_gpu():
    for peak, local in run_ranks(_peak, 2, backend="nccl"):
        assert local <= peak <= local + 2**20


def _dropout(rank, group, folder):
    """Gradients with dropout that differ when recomputed, whether ranks agree, and a model saved and loaded."""
    config = replace(MODERN, dropout=0.3, T=12)
    tokens, targets = (part.cuda() for part in token_batch(config))
    results = []
    for recompute in ("none", "selective", "full"):
        model = GPT(config, tp=group, recompute=recompute, dtype=torch.float64, device="cuda")
        before = torch.cuda.get_rng_state()
        model.loss(tokens, targets).backward()
        assert torch.equal(before, torch.cuda.get_rng_state())
        results.append({name: weight.grad for name, weight in model.named_parameters()})
    save(model, folder)
    other = GPT(config, tp=group, seed=1, dtype=torch.float64, device="cuda")
    load(other, folder)
    same = all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    wrong = [wrong_tensors(found, results[0]) for found in results[1:]]
    return wrong, same, results[0]["norm.weight"].cpu()


def test_dropout_on_gpus_is_drawn_again_in_recomputation_and_agrees_between_ranks(tmp_path):
    (wrong, same, norm), (other_wrong, other_same, other_norm) = run_ranks(
        _dropout, 2, str(tmp_path), backend="nccl"
    )
    assert wrong == other_wrong == [[], []] and same and other_same
    assert torch.equal(norm, other_norm)
