"""`tpcourse bench exposed`: every variant has the same gradients, and E follows from the times; its picture."""

from __future__ import annotations

import json
from functools import cache
from itertools import accumulate
from types import SimpleNamespace

import pytest
import torch
from rig import run_ranks
from test_draw_helpers import faults, marked
from test_overlap_traffic import program

from tpcourse import draw
from tpcourse.cli.bench import exposed, exposed_here
from tpcourse.cli.bench.exposed import ALONE, SERIAL, summary
from tpcourse.cli.bench.exposed_here import BUCKETS, FEW, ON_CPU, SHARDS, VARIANTS
from tpcourse.draw.exposed import NONE
from tpcourse.timeline import spans_of


def _measured(rank, group):
    return exposed_here.measure_here(1)


@cache
def found():
    """What the first of two ranks reports; it is plain data."""
    return json.loads(json.dumps(run_ranks(_measured, 2, timeout=120)[0]))


def test_every_variant_is_timed_and_has_the_spans_of_both_ranks():
    assert {kind: list(times) for kind, times in found()["ms"].items()} == {k: list(v) for k, v in VARIANTS.items()}
    drawn = {(one["kind"], one["variant"]): spans_of(one["spans"]) for one in found()["timelines"]}
    assert set(drawn) == {(kind, name) for kind, of_kind in VARIANTS.items() for name in of_kind if name != ALONE}
    assert all({span.rank for span in spans} == {0, 1} for spans in drawn.values())
    for kind, name, op in ((BUCKETS, "buckets", "all_reduce"), (SHARDS, "prefetch", "all_gather")):
        calls = {span.name for span in drawn[kind, name] if span.lane == "communication"}
        assert op in calls


def _under_way(rank, group):
    """The most calls of stage 3 that are under way at a time: one after the other, and prefetched."""
    most, (x, y) = [], (torch.zeros(2, ON_CPU.T, dtype=torch.long) for _ in range(2))
    for name in (SERIAL, "prefetch"):
        run = VARIANTS[SHARDS][name](ON_CPU, torch.device("cpu"))
        order = program(lambda: run.backward(x, y)).split()  # noqa: B023 (called at once)
        begun = [{"all-gather": 1, "scatter-sum": 1, "wait": -1}.get(step, 0) for step in order]
        most.append(max(accumulate(begun)))
        run.end()
    return most


def test_one_after_the_other_waits_for_each_call_before_the_next_and_prefetch_does_not():
    for awaited, prefetched in run_ranks(_under_way, 2):
        assert awaited == 1 and prefetched > 1


def _trained(rank, group):
    """The losses of three steps, by kind and variant."""
    device, losses = torch.device("cpu"), {}
    x, y = (torch.randint(0, 256, (2, ON_CPU.T), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    for kind, variants in VARIANTS.items():
        for name, make in variants.items():
            run = make(ON_CPU, device)
            losses[f"{kind}, {name}"] = [(run.backward(x, y), run.optimizer.step())[0].item() for _ in range(3)]
            run.end()
    return losses


def test_all_variants_train_alike_when_all_ranks_have_the_same_batch():
    for losses in run_ranks(_trained, 2):
        right = losses[f"{BUCKETS}, {ALONE}"]
        assert all(values == pytest.approx(right, rel=2**-7) for values in losses.values()), losses


def made_up(**more):
    """Nothing hidden, half hidden, and a step that is faster than the one that sends nothing."""
    ms = {BUCKETS: {ALONE: 10.0, SERIAL: 14.0, "buckets": 12.0}, SHARDS: {ALONE: 10.0, SERIAL: 18.0, "prefetch": 9.5}}
    spans = [[0, "compute", "compute", 0.0, 0.003], [0, "communication", "AllReduce", 0.002, 0.004]]
    line = {"kind": BUCKETS, "variant": "buckets", "spans": spans}
    return {"backend": "nccl", "p": 2, "ms": ms, "timelines": [line], **more}


def test_e_and_exposed_time_are_counted_against_the_step_that_sends_nothing():
    rows = {row["variant"]: row for row in summary(made_up()).figures["rows"]}
    assert (rows["buckets"]["exposed_ms"], rows["buckets"]["hidden"], rows["buckets"]["covered"]) == (2.0, 0.5, 0.5)
    assert rows["prefetch"]["hidden"] == 1 + 0.5 / 8 and rows["prefetch"]["covered"] is None
    assert all(len(row) == len(exposed.COLUMNS) for row in summary(made_up()).rows)


def test_the_picture_has_a_bar_and_a_hatched_end_for_each_row():
    figures = summary(made_up()).figures
    rows, title = draw.recorded_exposed({"2 x H200": figures})
    ax = draw.exposed_times(rows, title)
    ends = [bar.get_x() + bar.get_width() for bar in marked(ax, "exposed")]
    assert ends == pytest.approx([row["ms"] for row in rows])
    assert [round(bar.get_width(), 6) for bar in marked(ax, "exposed")] == [0, 4, 2, 0, 8, 0]
    assert "E = 0.50" in "".join(text.get_text() for text in ax.texts) and faults(ax) == []
    spans, E = draw.recorded_step("buckets", {"2 x H200": figures})
    assert E == 0.5 and "E = 0.50" in draw.timeline(spans, hidden=E).get_title(loc="left")


def test_without_a_recorded_run_on_gpus_the_picture_says_so_in_one_line():
    on_cpu = {"4 ranks on a CPU": summary(made_up(backend="gloo")).figures}
    for recordings in ({}, on_cpu):
        rows, title = draw.recorded_exposed(recordings)
        assert (rows, title) == ([], NONE) and draw.exposed_times(rows, title).get_title(loc="left") == NONE
        assert draw.recorded_step("buckets", recordings) == ([], None)


def test_the_command_measures_on_ranks_of_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr(exposed, "on_bare_ranks", lambda *args: asked.append(args) or made_up())
    assert exposed.measure(3).figures["p"] == 2
    assert asked == [("exposed_here", "measure_here", 3)]


def test_on_gpus_the_buckets_are_timed_once_more_over_a_group_whose_kernels_have_few_blocks(monkeypatch):
    asked, few = [], object()
    options = SimpleNamespace(config=SimpleNamespace(max_ctas=32))
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", SimpleNamespace(Options=lambda: options), raising=False)
    monkeypatch.setattr(torch.distributed, "new_group", lambda **how: asked.append(how) or few)
    found = exposed_here.variants_on(torch.device("cuda", 0))
    assert list(found) == [*VARIANTS, FEW] and asked == [{"backend": "nccl", "pg_options": options}]
    assert options.config.max_ctas == 4 and list(found[FEW]) == [ALONE, SERIAL, "buckets"]
    assert all(make.keywords["dp"] is few for make in found[FEW].values())
    assert exposed_here.variants_on(torch.device("cpu")) is VARIANTS
