"""A table with a wrong line, or a sum that is forgotten: the tests of the block name what breaks."""

from __future__ import annotations

import re
import traceback
from dataclasses import replace

import pytest
import torch
from block_cases import CLASSIC, MODERN, random_state, token_batch, wrong_tensors
from rig import run_ranks

from tpcourse.block import GPT, LAYOUTS, finish_gradients, from_one_device, gradient_norm, to_one_device

ALIKE = replace(CLASSIC, V=260, F=16, dropout=0.0)  # 2 ranks hold equal shapes, so that a wrong cut runs


def gradients(model, config, finish=finish_gradients):
    """Whole gradients by name, as the table says they lie."""
    from_one_device(model, random_state(config))
    model.loss(*token_batch(config)).backward()
    finish(model)
    for weight in model.parameters():
        weight.data = weight.grad
    return to_one_device(model)


def _wrong(rank, group, config, changes, finish):
    """Names of the wrong gradients with a changed table, or of the weight that no longer fits: TP and TP+SP."""
    expected, said = gradients(GPT(config, dtype=torch.float64), config), []
    table = changes | {pattern: layout for pattern, layout in LAYOUTS.items() if pattern not in changes}
    for split in (False, True):
        model = GPT(config, tp=group, sequence_parallel=split, dtype=torch.float64, layouts=table)
        try:
            said.append(wrong_tensors(gradients(model, config, finish), expected))
        except ValueError:
            said.append(traceback.format_exc())
    return said


def nothing(model):
    """What is left when nobody finishes the gradients."""


def twice(model):
    finish_gradients(model)
    finish_gradients(model)


def wrong(changes, config=ALIKE, finish=finish_gradients, p=2):
    found = run_ranks(_wrong, p, config, changes, finish)
    if not changes:
        assert all(each == found[0] for each in found), "all ranks see the same"
    return found[0]


def test_the_table_as_it_is_breaks_nothing():
    assert wrong({}) == [[], []]


@pytest.mark.parametrize(
    ("pattern", "layout", "words"),
    [
        ("*.out.weight", "whole", r"self\.out\).*x of shape .*12\] .* weight \[24, 24\]"),
        ("*.down.weight", "whole", r"self\.down\).*x of shape .*8\] .* weight \[24, 16\]"),
        ("*.up.*", "whole", r"self\.down\).*x of shape .*16\] .* weight \[24, 8\]"),
        ("*.up.weight", "whole", r"self\.up\).*the bias has shape \[8\], .* weight \[16, 24\]"),
        ("*.qkv.*", "whole", r"self\.qkv\).*fused weight .*\[72, 24\], but 6 heads"),
        ("tokens.weight", "whole", r"self\.tokens\).*weight of shape \[260, 24\]: dim 0 must be the 130 words"),
        ("*.out.bias", "columns", r"self\.out\).*the bias has shape \[12\], but y is 24 wide"),
    ],
)
def test_a_layer_that_is_not_split_as_it_should_be_is_refused_at_its_line_with_both_shapes(pattern, layout, words):
    for said in wrong({pattern: layout}):
        assert isinstance(said, str) and re.search(words, said, re.DOTALL), said


def test_heads_cut_as_plain_columns_give_wrong_gradients_though_all_shapes_fit():
    for names in wrong({"*.qkv.*": "columns"}):
        assert {"blocks.0.attention.qkv.weight", "blocks.0.attention.qkv.bias"} <= set(names)


def test_gate_and_up_cut_as_one_give_wrong_gradients_though_all_shapes_fit():
    for names in wrong({"*.gate_up.*": "columns"}, replace(MODERN, V=260)):
        assert {"blocks.0.mlp.gate_up.weight", "blocks.1.mlp.down.weight"} <= set(names)


def test_a_forgotten_sum_leaves_exactly_the_whole_weights_short_with_sequence_parallelism():
    plain, split = wrong({}, finish=nothing)
    assert plain == []
    whole = {name for name, shard in GPT(ALIKE).shards.items() if shard.layout == "whole"}
    assert set(split) == whole and {"norm.weight", "blocks.1.mlp.down.bias", "places.weight"} <= whole


def test_a_forgotten_sum_leaves_shared_k_v_heads_short_on_four_ranks():
    plain, split = wrong({}, MODERN, finish=nothing, p=4)
    shared = {f"blocks.{i}.attention.qkv.weight" for i in range(2)}
    assert set(plain) == shared
    assert set(split) == shared | {name for name, shard in GPT(MODERN).shards.items() if shard.layout == "whole"}


def test_a_sum_that_is_taken_twice_makes_whole_weights_too_large():
    plain, split = wrong({}, finish=twice)
    assert plain == [] and "blocks.0.norm_mlp.weight" in split


def _wrong_norms(rank, group, config):
    """The norm as it is, of a rank's own gradients, and with every rank's squares counted."""
    model = GPT(config, tp=group, dtype=torch.float64)
    model.loss(*token_batch(config)).backward()
    finish_gradients(model)
    local = torch.stack([w.grad.square().sum() for w in model.parameters()]).sum()
    everything = local.clone()
    torch.distributed.all_reduce(everything, group=group)
    return gradient_norm(model).item(), local.sqrt().item(), everything.sqrt().item()


def test_local_norms_and_norms_that_count_whole_weights_p_times_are_wrong():
    model = GPT(MODERN, dtype=torch.float64)
    model.loss(*token_batch(MODERN)).backward()
    expected = torch.nn.utils.get_total_norm([w.grad for w in model.parameters()]).item()
    for norm, local, everything in run_ranks(_wrong_norms, 4, MODERN):
        assert norm == pytest.approx(expected, rel=1e-12)
        assert local < expected * (1 - 1e-3) and everything > expected * (1 + 1e-6)
