"""Spans of computing and communicating: from ledger and profiler, what they add up to, drawn, and exported."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from ledger_help import fresh_ledger
from rig import run_ranks
from test_draw_helpers import event, faults, marked

from tpcourse import draw, timeline
from tpcourse.ledger import Log, ledger
from tpcourse.timeline import LANES, Span, covered, from_ledger, from_profiler, hidden, spans_of, trace
from tpcourse.timeline.kernels import RANGE, Kernel, short
from tpcourse.timeline.recorder import MARK, begin_of

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTT"
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>, std::array<char*, 3>>(int)"


def span(lane, begin_s, end_s, rank=0, name="x"):
    return Span(rank, lane, name, begin_s, end_s)


def compute(begin_s, end_s, **more):
    return span("compute", begin_s, end_s, **more)


def communicate(begin_s, end_s, **more):
    return span("communication", begin_s, end_s, **more)


def test_e_is_1_as_fast_as_the_product_0_as_slow_as_serial_and_below_0_slower_still():
    assert [hidden(t, 2.0, 4.0) for t in (2.0, 3.0, 4.0, 6.0)] == [1.0, 0.5, 0.0, -1.0]
    assert hidden(3.0, 4.0, 4.0) is None, "a product as slow as serial leaves nothing to hide"


def test_covered_is_the_share_of_communication_under_computing_however_the_spans_lie():
    two = [compute(0, 2), compute(1, 3), communicate(2, 4), communicate(3, 4), communicate(9, 10), compute(9, 10)]
    other = [communicate(0, 1, rank=3), compute(5, 6, rank=3)]
    assert covered([two, other]) == pytest.approx({0: 2 / 3, 3: 0.0})
    assert covered([compute(0, 1)]) == {0: 0.0}


def test_what_is_computed_without_a_pause_is_one_span():
    rows = [compute(0, 1), compute(1.5, 3), compute(4, 5), compute(0, 1, rank=1), communicate(0, 2)]
    assert timeline.joined(rows, 0.6) == [
        communicate(0, 2), *(compute(*at, name="compute") for at in ((0, 3), (4, 5))),
        compute(0, 1, rank=1, name="compute"),
    ]  # fmt: skip


def test_a_rank_computes_unless_it_is_in_a_call_that_blocks_or_waits_for_one_that_does_not():
    log = Log([
        event(0, "all_gather", 1.0, 5.0, is_async=True, wait_begin_s=3.0, waited_s=5.0),
        event(0, "all_reduce", 6.0, 7.0),
        event(0, "send", 8.0, 9.0, is_async=True),
    ])  # fmt: skip
    spans = from_ledger(log)
    assert [s[3:] for s in spans if s.lane == "compute"] == [(1.0, 3.0), (5.0, 6.0), (7.0, 9.0)]
    assert [s[2:] for s in spans if s.lane == "communication"] == [
        ("all_gather", 1.0, 5.0), ("all_reduce", 6.0, 7.0), ("send", 8.0, 9.0),
    ]  # fmt: skip
    assert covered(spans) == {0: pytest.approx(3 / 6)}


def test_a_call_that_never_ended_lasts_to_the_end_of_the_run():
    spans = from_ledger([Log([event(0, "recv", 1.0, None)]), Log([event(1, "send", 2.0, 4.0)])])
    assert [s[3:] for s in spans if s.rank == 0] == [(1.0, 4.0)]


def kernels():
    """A gather under a product, a copy in a range of ours, torch's range, an add; times in microseconds."""
    rows = [
        (MARK, 7, 0, 900, True), (GEMM, 7, 100, 300), (GATHER, 20, 50, 150),
        (RANGE + "pull piece 1", 9, 400, 500, True),
        ("Memcpy DtoD (Device -> Device)", 9, 410, 490), ("Memcpy DtoD (Device -> Device)", 7, 410, 490),
        ("Memcpy PtoP (Device -> Device)", 7, 500, 510), ("nccl:_reduce_scatter_base", 20, 600, 700, True),
        ("some kernel", 20, 600, 700), (ADD, 7, 700, 710),
    ]  # fmt: skip
    return [Kernel(n, stream, 1_700_000_000_000_000_000 + 1000 * b, 1_700_000_000_000_000_000 + 1000 * e, *more)
            for n, stream, b, e, *more in rows]  # fmt: skip


def test_nccl_peer_copies_and_named_ranges_communicate_and_other_kernels_compute():
    spans = from_profiler(kernels(), rank=1, origin_ns=1_700_000_000_000_000_000)
    assert {s.rank for s in spans} == {1}
    named = [(s.lane, s.name, round(1e6 * s.begin_s, 3), round(1e6 * s.end_s, 3)) for s in spans]
    assert named == [
        ("communication", "AllGather", 50, 150), ("compute", "product", 100, 300),
        ("communication", "pull piece 1", 410, 490), ("compute", "copy", 410, 490),
        ("communication", "peer copy", 500, 510), ("communication", "some kernel", 600, 700),
        ("compute", "vectorized_elementwise_kernel", 700, 710),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "word"), [
    (GATHER, "AllGather"), (GEMM, "product"), ("Memset (Device)", "fill"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ReduceScatter"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "SendRecv"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(T::Params)", "product"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "product"), ("odd<name>", "odd"),
    ("void c10d::symmetric_memory::barrier_kernel<true>(unsigned int**, int)", "barrier"),
])  # fmt: skip
def test_kernels_have_short_names(name, word):
    assert short(name) == word


def test_the_profilers_own_events_are_read():
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function(MARK):
        torch.ones(3).sum()
    events = list(profiler.profiler.kineto_results.events())
    assert begin_of(events) > 1_000_000_000
    assert from_profiler(events, 0) == [], "events of the CPU are no kernels"
    assert all(hasattr(events[0], name) for name in ("is_user_annotation", "device_resource_id", "end_ns"))


def _recorded(rank, group):
    x = torch.ones(4)

    def step():
        work = dist.all_reduce(x, async_op=True)
        x.clone().exp()
        work.wait()
        dist.all_gather([torch.empty(4) for _ in range(2)], x)

    with fresh_ledger():
        with pytest.raises(ValueError, match="0 collectives"):
            timeline.record(lambda: None)
        return timeline.record(step, times=2)


def test_on_the_cpu_a_step_is_recorded_from_the_ledger():
    spans = spans_of(run_ranks(_recorded, 2))
    for rank in (0, 1):
        calls = [s.name for s in spans if s.rank == rank and s.lane == "communication"]
        assert calls == ["all_reduce", "all_gather"] * 2
    assert all(-60 < s.begin_s <= s.end_s < 60 for s in spans)
    assert draw.timeline(json.loads(json.dumps(spans))).get_xlabel() == "time (ms)"


ROWS = [
    [0, "compute", "product", 10.0, 10.004], [0, "communication", "AllGather", 10.001, 10.003],
    [0, "communication", "peer copy", 10.002, 10.005], [1, "compute", "product", 10.0005, 10.0045],
    [1, "communication", "AllGather", 10.005, 10.006],
]  # fmt: skip


def test_a_trace_is_a_list_of_complete_events_in_microseconds_with_a_process_a_rank_and_a_thread_a_lane(tmp_path):
    path = timeline.write_trace(ROWS, tmp_path / "trace.json")
    content = json.loads(path.read_text("utf-8"))
    assert set(content) == {"traceEvents", "displayTimeUnit"} and content["displayTimeUnit"] == "ms"
    spans, names = [[e for e in content["traceEvents"] if e["ph"] == ph] for ph in "XM"]
    assert len(spans) + len(names) == len(content["traceEvents"])
    assert all(set(e) == {"ph", "name", "cat", "pid", "tid", "ts", "dur"} for e in spans)
    assert all(isinstance(e["pid"], int) and isinstance(e["tid"], int) and e["tid"] > 0 for e in spans)
    found = [(e["pid"], e["cat"], e["name"], round(e["ts"], 3), round(e["dur"], 3)) for e in spans]
    assert sorted(found) == sorted(
        (rank, lane, name, round(1e6 * (begin - 10), 3), round(1e6 * (end - begin), 3))
        for rank, lane, name, begin, end in ROWS
    )
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in names if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in spans} == set(threads)
    assert sorted(threads.values()) == sorted(["compute", "communication", "communication (2)"] + [*LANES])
    assert all(threads[e["pid"], e["tid"]].startswith(e["cat"]) for e in spans)
    processes = {e["pid"]: e["args"]["name"] for e in names if e["name"] == "process_name"}
    assert processes == {0: "rank 0", 1: "rank 1"}


def test_spans_of_one_thread_of_a_trace_never_overlap():
    spans = [communicate(k, k + 2.5, name=str(k)) for k in range(6)] + [compute(0, 9)]
    by_thread = {}
    for e in trace(spans)["traceEvents"]:
        if e["ph"] == "X":
            by_thread.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    assert len(by_thread) == 4
    for times in by_thread.values():
        assert all(before[1] <= after[0] for before, after in pairwise(times))


def test_spans_are_drawn_as_they_are_with_both_shares_in_the_title():
    ax = draw.timeline(ROWS, hidden=0.25)
    assert len(marked(ax, "compute")) == 2 and len(marked(ax, "communication")) == 3
    assert all(bar.get_hatch() for bar in marked(ax, "communication"))
    title = "communication (hatched) under computing: 0 to 75 %; hidden, by wall time: E = 0.25"
    assert ax.get_title(loc="left") == title
    assert {text.get_text() for text in ax.texts} == {"product", "AllGather + peer copy", "AllGather"}
    assert faults(ax) == []
    bar = marked(ax, "compute")[1].get_paths()[0].vertices
    assert (bar[:, 0].min(), bar[:, 0].max()) == pytest.approx((0.5, 4.5))


@pytest.mark.parametrize(("rows", "words"), [
    ([], "0 spans"), ([[0, "compute", "x", 1.0]], "is no span"), ([3], "3 is no span"),
    ([[0, "wire", "x", 0.0, 1.0]], "compute, communication"), ([[0, "compute", "x", 2.0, 1.0]], "its end"),
])  # fmt: skip
def test_what_is_no_span_is_refused(rows, words):
    with pytest.raises(ValueError, match=words):
        spans_of(rows)


def test_a_log_without_events_has_no_spans():
    with pytest.raises(ValueError, match="0 events"), ledger() as log:
        from_ledger(log)
