"""What a block sends and what it keeps, with and without sequence parallelism."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from block_cases import CLASSIC, MODERN, token_batch
from ledger_help import fresh_ledger, logged
from rig import run_ranks

from tpcourse import ledger as lg
from tpcourse import memory
from tpcourse.block import GPT, GPTConfig, clip_gradients, finish_gradients, gradient_norm

EVEN = replace(MODERN, T=12)  # 2 and 4 divide T: uneven pieces would travel padded
WAYS = {"TP": {}, "TP+SP": {"sequence_parallel": True}, "again": {"sequence_parallel": True, "regather": True}}


def _block_logs(rank, group, config):
    """For each way: (operation -> calls forward, the same backward, bytes sent)."""
    found = {}
    for way, options in WAYS.items():
        model = GPT(config, tp=group, **options)
        pieces = group.size() if options else 1
        x = torch.randn(2, config.T // pieces, config.D, requires_grad=True)
        with fresh_ledger():
            with lg.ledger() as forward:
                y = model.blocks[0](x, model.new_pass(config.T))
            with lg.ledger() as backward:
                y.sum().backward()
            calls = [_counts(log) for log in (forward, backward)]
            found[way] = *calls, forward.bytes_sent + backward.bytes_sent
    return found


def _counts(log):
    return {op: log.count(op) for op in sorted({event.op for event in log.events})}


@pytest.mark.parametrize("config", [EVEN, replace(CLASSIC, T=12)], ids=["modern", "classic"])
@pytest.mark.parametrize("p", [2, 4])
def test_a_block_sends_two_all_reduces_each_way_or_the_same_bytes_in_two_gathers_and_two_scatters(config, p):
    two, pair = {"all_reduce": 2}, {"all_gather": 2, "reduce_scatter": 2}
    for found in run_ranks(_block_logs, p, config):
        assert found["TP"][:2] == (two, two)
        assert found["TP+SP"][:2] == (pair, pair)
        assert found["again"][:2] == (pair, {"all_gather": 4, "reduce_scatter": 2})
        whole = 2 * config.T * config.D * 4
        assert found["TP"][2] == found["TP+SP"][2] == 4 * 2 * (p - 1) * whole // p
        assert found["again"][2] == found["TP"][2] + 2 * (p - 1) * whole // p


def _step_logs(rank, group, config, options):
    """Calls of the loss and its backward, of finish_gradients, and of clip_gradients, with the elements sent."""
    model, (tokens, targets) = GPT(config, tp=group, **options), token_batch(config, T=12)
    logs = [logged(lambda: model.loss(tokens, targets).backward())]
    logs += [logged(finish_gradients, model), logged(clip_gradients, model, 1.0)]
    whole = sum(w.numel() for name, w in model.named_parameters() if model.shards[name].layout == "whole")
    return [[(event.op, event.numel) for event in log.events] for log in logs], whole


@pytest.mark.parametrize("way", ["TP", "TP+SP"])
def test_a_step_finishes_its_gradients_in_one_call_for_each_kind_and_its_norm_in_one_number(way):
    shared_heads = 2 * 2 * 2 * EVEN.K * EVEN.D  # 2 layers, K and V, 2 heads
    for (step, finish, clip), whole in run_ranks(_step_logs, 4, EVEN, WAYS[way]):
        embedding_and_head = 2
        assert len(step) == (4 if way == "TP" else 8) * EVEN.L + embedding_and_head * (1 if way == "TP" else 2) + 2
        heads = [("all_reduce", shared_heads)]
        assert finish == (heads if way == "TP" else [("all_reduce", whole), *heads])
        assert clip == [("all_reduce", 1)]


def test_with_a_k_v_head_for_each_rank_tensor_parallelism_has_no_gradient_to_finish():
    for (_, finish, _), _ in run_ranks(_step_logs, 2, EVEN, {}):
        assert finish == []


SIZES = (2, 128, 256, 8)  # B, T, D, H
FORMULA = GPTConfig(
    V=8, T=128, D=256, H=8, L=1, norm="layer", mlp="gelu", bias=True, rotary=False, dropout=0.1, attention="unfused"
)
KEPT = {"TP": ("TP", "none"), "TP+SP": ("again", "none"), "TP+SP selective": ("again", "selective"),
        "TP selective": ("TP", "selective"), "TP full": ("TP", "full"), "TP+SP full": ("again", "full")}  # fmt: skip


def _kept(rank, group):
    """Bytes that one block keeps for backward, for each way and what it recomputes."""
    found = {}
    for name, (way, recompute) in KEPT.items():
        model = GPT(FORMULA, tp=group, recompute=recompute, dtype=torch.bfloat16, **WAYS[way])
        pieces = group.size() if way == "again" else 1
        x = torch.randn(2, 128 // pieces, 256, dtype=torch.bfloat16, requires_grad=True)
        here = model.new_pass(128)
        found[name] = memory.saved(here.again, "full", model.blocks[0], x, here).bytes
    return found


@pytest.mark.parametrize("p", [2, 4])
def test_a_block_keeps_what_the_formulas_say_within_one_percent(p):
    for found in run_ranks(_kept, p):
        for name, (way, recompute) in KEPT.items():
            said = memory.activation_bytes(*SIZES, recompute=recompute, tp=p, sequence_parallel=way == "again")
            assert found[name] == pytest.approx(said, rel=0.01), name


def test_without_regathering_sequence_parallelism_keeps_both_gathered_inputs():
    model, x = GPT(FORMULA, dtype=torch.bfloat16), torch.randn(2, 128, 256, dtype=torch.bfloat16, requires_grad=True)
    one = memory.saved(model.blocks[0], x, model.new_pass(128)).bytes
    assert one == pytest.approx(memory.activation_bytes(*SIZES), rel=0.01)
    for without, with_ in run_ranks(_both, 2):
        assert without - with_ == 2 * (2 - 1) * x.nbytes // 2


def _both(rank, group):
    x = torch.randn(2, 64, 256, dtype=torch.bfloat16, requires_grad=True)
    models = [GPT(FORMULA, tp=group, dtype=torch.bfloat16, **WAYS[way]) for way in ("TP+SP", "again")]
    return [memory.saved(model.blocks[0], x, model.new_pass(128)).bytes for model in models]


def _norms(rank, group, config, sequence_parallel):
    model = GPT(config, tp=group, sequence_parallel=sequence_parallel, dtype=torch.float64)
    return _norm_and_clipped(model, config)


def _norm_and_clipped(model, config):
    model.loss(*token_batch(config)).backward()
    finish_gradients(model)
    before, returned = gradient_norm(model).item(), clip_gradients(model, 0.1).item()
    return before, returned, gradient_norm(model).item()


@pytest.mark.parametrize("config", [MODERN, CLASSIC], ids=["modern", "classic"])
@pytest.mark.parametrize("p", [2, 4])
def test_the_global_norm_is_the_one_device_norm_before_and_after_clipping(config, p):
    expected = GPT(config, dtype=torch.float64)
    expected.loss(*token_batch(config)).backward()
    norm = torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.1).item()
    clipped = torch.nn.utils.get_total_norm([w.grad for w in expected.parameters()]).item()
    assert norm > 0.2
    for sequence_parallel in (False, True):
        for found in run_ranks(_norms, p, config, sequence_parallel):
            assert found == pytest.approx((norm, norm, clipped), rel=1e-12)


def test_a_norm_that_cannot_be_meant_is_refused():
    with pytest.raises(ValueError, match=r"max_norm = 0\.0"):
        clip_gradients(GPT(MODERN), 0.0)
