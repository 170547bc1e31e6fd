"""`tpcourse bench data`: every variant takes the same step, and the figures follow from the times."""

from __future__ import annotations

import pytest
import torch
from rig import run_ranks

from tpcourse.cli.bench.data import summary
from tpcourse.cli.bench.data_parallel import ON_CPU, Bench
from tpcourse.cli.bench.staged import Staged
from tpcourse.ledger import ledger
from tpcourse.train import GPT

MS = {
    "ddp": 11.0, "ddp, views": 10.5, "ours, 1": 12.0, "ours, 25": 10.1, "ours, 0": 13.0, "serial, 25": 14.0,
    "silent, 25": 10.0, "wire, 1": 4.0, "wire, 25": 2.0, "wire, 0": 1.9,
}  # fmt: skip


def found():
    sizes = {"usual_mb": 25, "buckets_mb": (1, 25, 0)}
    waited = {"1": 0.4, "25": 0.1, "0": 1.9}
    facts = {"num_bytes": 700e6, "num_calls": {"1": 700, "25": 29, "0": 1}, "p": 2}
    return {"ms": MS, "waited_ms": waited, "sizes": sizes, **facts}


def test_the_ratio_is_ours_over_the_faster_of_torchs_two():
    assert summary(found()).figures["ratio"] == pytest.approx(10.1 / 10.5)


def test_exposed_is_the_wait_and_paid_is_what_a_step_takes_above_the_silent_one_over_its_communication():
    figures = summary(found()).figures
    assert [point["exposed"] for point in figures["curve"]] == pytest.approx([0.4 / 4, 0.1 / 2, 1.9 / 1.9])
    assert [point["paid"] for point in figures["curve"]] == pytest.approx([2 / 4, 0.1 / 2, 3 / 1.9])
    assert figures["best"]["bucket_mb"] == 25 and figures["best"]["num_calls"] == 29
    assert figures["hidden"] == pytest.approx(1 - 0.1 / 4)
    assert figures["curve"][-1]["bucket_mb"] == 700, "one bucket of all has the size of all"


def _variants(rank, group):
    """Each variant once: which ranks agree on the weights afterwards, and how many calls it makes."""
    bench = Bench(ON_CPU, torch.device("cpu"))
    calls, before = bench.variants()
    counts = {}
    for name in calls:
        before.get(name, lambda: None)()
        with ledger() as log:
            calls[name]()
        counts[name] = log.count("all_reduce")
    return counts, bench.facts(), bench.waited_ms(2)


def test_every_variant_makes_the_calls_that_its_name_says():
    for counts, facts, waited in run_ranks(_variants, 2):
        assert waited.keys() == facts["num_calls"].keys() and min(waited.values()) > 0
        usual = f"{ON_CPU.usual_mb:g}"
        for mb, num in facts["num_calls"].items():
            assert counts[f"ours, {mb}"] == counts[f"wire, {mb}"] == num
        assert counts[f"serial, {usual}"] == facts["num_calls"][usual] > 1
        assert counts[f"silent, {usual}"] == 0 < counts["ddp"]
        assert facts["num_calls"]["0"] == 1 and facts["num_bytes"] == 4 * facts["num_parameters"]


def _late(rank, group):
    """How many calls had begun when backward left the first block, in each stage."""
    torch.manual_seed(0)
    model, seen = GPT(), []
    parallel = Staged(model, dp=group, bucket_mb=0.02)
    model.blocks[0].register_full_backward_hook(lambda *_: seen.append(log.num_calls))
    grads = []
    for stage in ("overlap", "serial", "silent"):
        parallel.stage = stage
        parallel.cut(0.02)
        model.zero_grad()
        with ledger() as log:
            model(torch.full((1, 8), 1 + rank)).sum().backward()
        grads.append(model.places.weight.grad.clone())
    return seen, torch.equal(grads[0], grads[1]), torch.equal(grads[0], grads[2])


def test_serial_sends_the_same_behind_backward_and_silent_sends_nothing():
    for (early, late, none), same, silent in run_ranks(_late, 2):
        assert early > 0 == late == none
        assert same and not silent
