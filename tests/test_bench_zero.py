"""`tpcourse bench zero`: every variant trains the same model, and the figures follow from what was measured."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache

import pytest
import torch
from ledger_help import fresh_ledger
from rig import run_ranks

from tpcourse import draw
from tpcourse.cli.bench import zero, zero_here, zero_variants
from tpcourse.cli.bench.record import record
from tpcourse.cli.bench.zero import ROUNDING, summary
from tpcourse.cli.bench.zero_here import ON_CPU
from tpcourse.cli.bench.zero_variants import VARIANTS
from tpcourse.draw.recorded_zero import OFF, ON
from tpcourse.ledger import ledger
from tpcourse.memory import held

P = 2
BYTES = {
    "DDP": 16, "ZeroRedundancyOptimizer": 10, "stage 1": 10, "stage 2": 9, "stage 3": 8, "stage 3, no prefetch": 8,
    "fully_shard": 8,
}  # fmt: skip


def _measured(rank, group):
    return zero_here.measure_here(2)


@cache
def found():
    """What the first of two ranks reports; it is plain data."""
    return json.loads(json.dumps(run_ranks(_measured, P, timeout=180)[0]))


def row(name, **more):
    return {
        "name": name, "whose": VARIANTS[name][0], "ms": 200.0, "peak_GB": 20.0, "reserved_GB": 21.0,
        "bytes_per_weight": 8.0, "allocated_per_weight": 8.1, "losses": [5.0, 4.0],
    } | more  # fmt: skip


def made_up(**of):
    """Figures in which all variants are equal but for what is given: name -> changes."""
    return {"backend": "nccl", "p": 2, "rows": [row(name, **of.get(name.replace(" ", "_"), {})) for name in VARIANTS]}


def test_losses_of_all_variants_fall_and_agree_to_bfloat16_s_rounding():
    result = summary(found())
    assert result.figures["losses_agree"], result.figures["losses_apart"]
    for one in found()["rows"]:
        assert len(one["losses"]) == ON_CPU.warm_up + ON_CPU.timed
        assert len(set(one["losses"])) > 1 and 4 < one["losses"][0] < 7


def test_each_variant_holds_the_bytes_that_its_formula_says():
    for one in found()["rows"]:
        assert one["bytes_per_weight"] == pytest.approx(BYTES[one["name"]], rel=0.04), one
        assert sum(one["held_per_weight"].values()) <= one["bytes_per_weight"] * (1 + 1e-9)


def test_times_are_medians_of_the_run_and_on_the_cpu_nobody_knows_a_peak():
    for one in found()["rows"]:
        assert len(one["ms_by_round"]) == 2 and all(ms > 0 for ms in one["ms_by_round"])
        assert min(one["ms_by_round"]) <= one["ms"] <= max(one["ms_by_round"])
        assert one["peak_GB"] is one["reserved_GB"] is one["allocated_per_weight"] is None
    assert len({one["ms"] for one in found()["rows"]}) == len(VARIANTS)


def _left(rank, group):
    """Bytes of all tensors that live behind a visit of each variant, less those before it."""
    device, left = torch.device("cpu"), {}
    pairs = zero_here.batches_of(ON_CPU, device)
    for name in VARIANTS:
        zero_here.visit(VARIANTS[name][1], ON_CPU, pairs, device)  # the first keeps what is kept once
        before = held(alive=True).total
        zero_here.visit(VARIANTS[name][1], ON_CPU, pairs, device)
        left[name] = held(alive=True).total - before
    return left


def test_a_visit_leaves_no_tensor_behind():
    for left in run_ranks(_left, P):
        assert max(left.values()) < 1000, left


def _calls(rank, group):
    """The collectives of a step of each variant, by operation, after a first one."""
    device, counts = torch.device("cpu"), {}
    pairs = zero_here.batches_of(ON_CPU, device)
    for name, (_, make) in VARIANTS.items():
        run = make(ON_CPU, device)
        with fresh_ledger():
            for pair in pairs[:2]:
                with ledger() as log:
                    run.backward(*pair)
                    run.optimizer.step()
        counts[name] = dict(Counter(event.op for event in log.events if event.dtype == "bfloat16"))
    return counts


def test_every_variant_sends_bfloat16_in_the_calls_that_its_name_says():
    parts = ON_CPU.L + 1  # the blocks, and what is in none
    for counts in run_ranks(_calls, P):
        assert set(counts["DDP"]) == {"all_reduce"}
        assert set(counts["ZeroRedundancyOptimizer"]) == {"all_reduce", "broadcast"}
        assert counts["stage 1"] == counts["stage 2"] and set(counts["stage 1"]) == {"all_gather", "reduce_scatter"}
        assert counts[ON] == counts[OFF] == {"all_gather": 2 * parts, "reduce_scatter": parts}
        assert counts["fully_shard"]["reduce_scatter"] == parts
        assert parts <= counts["fully_shard"]["all_gather"] <= 2 * parts


def _masters(rank, group):
    """Weights of our optimizer for DDP after three steps, and of AdamW in float32 on the same gradients, rounded."""
    weight = torch.nn.Parameter(torch.randn(5, 3).bfloat16())
    wide = torch.nn.Parameter(weight.detach().float())
    optimizer = zero_variants.MasterAdamW([weight], lr=0.1)
    right = torch.optim.AdamW([wide], lr=0.1)
    for _ in range(3):
        weight.grad = torch.randn(5, 3).bfloat16()
        wide.grad = weight.grad.float()
        optimizer.step()
        right.step()
    return torch.equal(weight, wide.bfloat16()), torch.equal(optimizer.masters[0], wide)


def test_ddp_s_optimizer_steps_in_float32_and_rounds_once():
    assert run_ranks(_masters, 1) == [(True, True)]


def test_ratios_are_of_times_and_of_peaks():
    result = summary(made_up(stage_3={"ms": 210.0, "peak_GB": 19.0}, DDP={"ms": 180.0, "peak_GB": 40.0}))
    ratios = result.figures["ratios"]
    assert ratios["stage 3 / fully_shard"] == pytest.approx({"ms": 1.05, "peak": 0.95})
    assert ratios["stage 1 / DDP"] == pytest.approx({"ms": 200 / 180, "peak": 0.5})
    assert ("stage 2", 200.0, 200 / 180, 20.0, 21.0, 8.0, 8.1, 4.0) in result.rows


@pytest.mark.parametrize("loss", [4.0 * (1 + 1.1 * ROUNDING), float("nan")])
def test_losses_that_differ_by_more_than_rounding_are_said(loss):
    result = summary(made_up(stage_2={"losses": [5.0, loss]}))
    assert not result.figures["losses_agree"]
    assert result.rows[-1][0] == "LOSSES DIFFER FROM DDP'S: stage 2"
    assert summary(made_up(stage_2={"losses": [5.0, 4.0 * (1 + 0.9 * ROUNDING)]})).figures["losses_agree"]


def test_a_recording_of_the_bench_is_what_the_lesson_draws(tmp_path):
    record("zero", summary(made_up() | {"num_parameters": 1_010_000_000}), tmp_path)
    content = json.loads((tmp_path / "zero.json").read_text())
    recorded, installed = (version.partition("+")[0] for version in (content["machine"]["torch"], torch.__version__))
    assert content["bench"] == "zero" and recorded == installed, "the build may be named in one of them only"
    rows, title = draw.recorded_stages({"2 x NVIDIA H200": content["figures"]})
    assert title == "1 B parameters, 2 x NVIDIA H200"
    assert draw.memory_and_time(rows, title).get_xlabel() == "ms a step"
    assert {ON, OFF} <= VARIANTS.keys()


def test_the_command_measures_on_ranks_of_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr(zero, "on_bare_ranks", lambda *args: asked.append(args) or made_up())
    assert zero.measure(3).figures["p"] == 2
    assert asked == [("zero_here", "measure_here", 3)]
