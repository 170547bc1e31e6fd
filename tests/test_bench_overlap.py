"""`tpcourse bench overlap`: every variant computes the same, and E and ratios follow from the times."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from rig import run_ranks

from tpcourse import draw
from tpcourse.cli.bench import overlap, overlap_here, overlap_layers, overlap_ways
from tpcourse.cli.bench.overlap import summary
from tpcourse.cli.bench.overlap_variants import FORMS, FUSED, ON_CPU, ON_GPU, PLAIN, PRODUCTS, SERIALS
from tpcourse.ranks.timing import median_seconds
from tpcourse.timeline import spans_of

RUNS_ON_CPU = {*PRODUCTS, PLAIN, "serial", "ring", "popular", "auto"}


def _measured(rank, group):
    return overlap_here.measure_here(1)


@cache
def found():
    """What the first of two ranks reports; it is plain data."""
    return json.loads(json.dumps(run_ranks(_measured, 2, timeout=240)[0]))


def products():
    return [one for one in found()["problems"] if one["kind"] in ON_CPU]


def test_every_variant_of_a_product_gives_the_plain_answer():
    assert [(one["kind"], *one["shape"]) for one in products()] == [
        (kind, shape.M, shape.K, shape.N) for kind, shapes in ON_CPU.items() for shape in shapes
    ]
    for one in products():
        assert set(one["errors"]) >= RUNS_ON_CPU - {*PRODUCTS}, one["skipped"]
        assert max(one["errors"].values()) < 1e-5, one["errors"]


def test_what_does_not_run_here_is_skipped_with_a_word_and_the_rest_is_timed_in_both_ways():
    for one in products():
        assert FUSED in one["skipped"] and all(one["skipped"].values())
        timed = {name for name in (*PRODUCTS, PLAIN, *FORMS) if name not in one["skipped"]}
        assert timed >= RUNS_ON_CPU
        assert set(one["ms"]) == {"back to back", "one at a time"}, "a CPU has no graphs"
        assert all(set(times) == timed and min(times.values()) > 0 for times in one["ms"].values())
        assert set(one["not_captured"]) == timed


def test_the_layers_forms_have_the_gradients_of_one_after_the_other():
    for kind in ("mlp", "mlp_forward"):
        (one,) = (one for one in found()["problems"] if one["kind"] == kind)
        assert {"one after the other", "serial", "ring", "auto"} <= set(one["errors"])
        assert max(one["errors"].values()) < 1e-5
        assert {"products", "parallelize_module"} <= set(one["ms"]["back to back"])
        assert "GPU" in one["skipped"]["compiled async TP"]


def test_both_ranks_of_a_timeline_are_there_with_their_calls():
    drawn = {(one["kind"], one["variant"]) for one in found()["timelines"]}
    assert {(kind, name) for kind in ON_CPU for name in ("serial", "popular", "ring")} <= drawn
    for one in found()["timelines"]:
        spans = spans_of(one["spans"])
        calls = [span.name for span in spans if span.lane == "communication"]
        assert {span.rank for span in spans} == {0, 1} and calls
        if one["variant"] == "serial":
            assert calls == [{"gather_product": "all_gather", "product_scatter": "reduce_scatter"}[one["kind"]]] * 2
        if (one["kind"], one["variant"]) == ("product_scatter", "popular"):
            assert calls == ["reduce"] * 4
        assert draw.timeline(one["spans"]).get_xlabel() == "time (ms)"


def problem(**more):
    """A product of 2 ms whose gather takes 1 ms; a form that hides half of it, as a graph four fifths."""
    ms = {PRODUCTS[0]: 2.5, PRODUCTS[1]: 2.0, PLAIN: 3.0, "serial": 3.1, "ring": 2.5, FUSED: 2.4, "popular": 3.2}
    alone = {name: time + 0.5 for name, time in ms.items()} | {FUSED: 5.0}
    made_up = {
        "kind": "gather_product", "shape": [8, 4, 2], "dtype": "bfloat16", "gemm": list(PRODUCTS),
        "serial": list(SERIALS), "torchs": [FUSED], "errors": {"ring": 0.0}, "skipped": {"peer": "no GPU"},
        "not_captured": {},
        "ms": {"back to back": ms, "back to back, graph": {"ring": 2.2}, "one at a time": alone},
    }  # fmt: skip
    return {"backend": "nccl", "p": 2, "problems": [made_up | more], "timelines": []}


def by_variant(result):
    return {row["variant"]: row for row in result.figures["rows"]}


def test_e_is_counted_against_the_fastest_product_and_the_fastest_serial_variant():
    rows = by_variant(summary(problem()))
    assert rows["ring"]["ms"] == 2.2 and rows["ring"]["as_graph"]
    assert rows["ring"]["hidden"] == pytest.approx(0.8)
    assert rows["ring"]["hidden_by_way"] == {
        "back to back": pytest.approx(0.5), "back to back, graph": None, "one at a time": pytest.approx(0.5),
    }  # fmt: skip
    assert rows["popular"]["hidden"] == pytest.approx(-0.2) and not rows["popular"]["as_graph"]
    assert rows[PLAIN]["hidden"] == 0 and rows[PRODUCTS[1]]["hidden"] == 1


def test_ratios_are_over_torchs_operator_timed_in_the_same_way():
    row = by_variant(summary(problem()))["ring"]
    assert row["over_torch"] == pytest.approx(2.2 / 2.4) and row["alone_over_torch"] == pytest.approx(3.0 / 5.0)
    assert by_variant(summary(problem(torchs=[])))["ring"]["over_torch"] is None


def test_a_product_that_is_as_slow_as_serial_has_no_e():
    slow = {"back to back": {PRODUCTS[0]: 3.0, PLAIN: 3.0, "ring": 3.0}, "one at a time": {"ring": 3.0}}
    assert by_variant(summary(problem(ms=slow)))["ring"]["hidden"] is None


def test_the_backward_of_a_layer_is_both_less_forward():
    forward, both = problem()["problems"][0], problem()["problems"][0]
    forward |= {"kind": "mlp_forward", "ms": {"back to back": {"ring": 1.0}, "one at a time": {"ring": 1.5}}}
    both |= {"kind": "mlp"}
    rows = summary(problem() | {"problems": [both, forward]}).figures["rows"]
    (row,) = (row for row in rows if row["kind"] == "mlp_backward")
    assert (row["variant"], row["ms"], row["alone_ms"]) == ("ring", 1.5, 1.5)


def test_the_table_says_what_was_skipped_and_the_recording_has_the_figures_of_the_lesson():
    result = summary(problem())
    assert ("gather_product 8 x 4 x 2", "peer", *[""] * 7, "skipped: no GPU") in result.rows
    assert all(len(row) == len(overlap.COLUMNS) for row in result.rows) and "ring" in result.table()
    row = json.loads(json.dumps(by_variant(result)["ring"]))
    assert {"kind", "shape", "variant", "ms", "hidden"} <= row.keys() and row["shape"] == [8, 4, 2]
    assert summary(found()).table()


def test_the_shapes_are_those_that_were_promised():
    assert {(s.M, s.K, s.N) for s in ON_GPU["gather_product"]} == {
        (8192, 8192, 14336), (8192, 4096, 7168), (16384, 8192, 4096), (4096, 4096, 4096), (2048, 4096, 4096),
    }  # fmt: skip
    assert {(s.M, s.K, s.N) for s in ON_GPU["product_scatter"]} == {
        (8192, 14336, 8192), (8192, 7168, 4096), (16384, 4096, 8192), (4096, 4096, 4096), (2048, 4096, 4096),
    }  # fmt: skip
    assert {(s.D, s.F) for s in overlap_layers.ON_GPU} == {(8192, 28672), (4096, 14336)}


def test_ranks_that_break_with_graphs_are_run_again_without(monkeypatch):
    asked = []

    def on_bare_ranks(*args):
        asked.append(args)
        if args[-1]:
            raise RuntimeError("rank 1 died")
        return problem()

    monkeypatch.setattr(overlap, "on_bare_ranks", on_bare_ranks)
    assert overlap.measure(3).figures["p"] == 2
    assert asked == [("overlap_here", "measure_here", 3, True), ("overlap_here", "measure_here", 3, False)]


def _tried(rank, group):
    def one_rank_fails():
        if rank == 1:
            raise OSError("only here\nmore")
        return 7

    outcomes = [overlap_ways.tried(one_rank_fails), overlap_ways.tried(lambda: 7)]
    far = [overlap_ways.far_from(torch.tensor([2.0, 4.0 + rank]), torch.tensor([2.0, 4.0]))]
    far.append(overlap_ways.far_from(torch.tensor([float("nan") if rank else 1.0]), torch.ones(1)))
    return outcomes, far


def test_what_fails_on_one_rank_fails_on_all_and_the_worst_rank_counts():
    for outcomes, far in run_ranks(_tried, 2):
        assert outcomes == [(None, "OSError: only here"), (7, "")]
        assert far == [0.25, float("inf")]


def _alone(rank, group):
    order = []
    found = median_seconds({"a": lambda: order.append("a")}, repeats=3, in_a_row=1, alone=True)
    return found, order


def test_one_at_a_time_calls_once_a_sample_and_two_to_warm_up():
    for seconds, order in run_ranks(_alone, 2):
        assert seconds["a"] >= 0 and order == ["a"] * 5
