"""Measuring in the ranks: what is called, in which order, whose time counts. No test asks how fast anything is."""

from __future__ import annotations

import time
from statistics import median
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from rig import run_ranks

from tpcourse import costs
from tpcourse.cli.bench import collectives
from tpcourse.costs import Measurement
from tpcourse.ranks import timing


def _calls(rank, group):
    seen = []
    calls = {name: lambda name=name: seen.append(name) for name in "abc"}
    before = {"b": lambda: seen.append("before b")}
    took = timing.median_seconds(calls, repeats=5, in_a_row=3, before=before)
    return seen, took


def test_calls_alternate_in_one_random_order_on_all_ranks_with_warm_up_and_one_call_before_the_clock():
    (first, took), (second, same) = run_ranks(_calls, 2)
    assert first == second
    assert took == same
    assert all(first.count(name) == (timing.WARM_UP + 5) * (1 + 3) for name in "abc")
    assert first.count("before b") == timing.WARM_UP + 5
    assert all(first[i + 1 : i + 5] == ["b"] * 4 for i, name in enumerate(first) if name == "before b")
    starts = [name for name in first if name.startswith("before")]
    orders = {tuple(block) for block in _blocks([name for name in first if name not in starts])}
    assert len(orders) > 1, "the order changes from sample to sample"


def _blocks(names):
    """Which call came when, sample by sample: runs of four."""
    runs = names[::4]
    return [runs[i : i + 3] for i in range(0, len(runs), 3)]


def _slow_rank(rank, group):
    took = timing.median_seconds({"sleep": lambda: time.sleep(0.004 * rank)}, repeats=3, in_a_row=2)
    return took["sleep"]


def test_the_slowest_rank_s_time_counts_on_every_rank():
    first, second = run_ranks(_slow_rank, 2)
    assert first == second >= 0.004


def _bounded(rank, group):
    seen = []
    found = timing.time_collectives([1, 1000, 64_000], repeats=2)
    work = torch.ones(4)
    dist.all_reduce(work)
    return found, work[0].item(), seen


@pytest.mark.parametrize("p", [2, 3])
def test_collectives_are_measured_at_whole_elements_for_every_rank_and_leave_the_group_working(p):
    results = run_ranks(_bounded, p)
    found = results[0][0]
    assert all(result[1] == p for result in results)
    assert all(result[0] == found for result in results)
    assert {m.op for m in found} == set(timing.COLLECTIVES)
    sizes = sorted({m.num_bytes for m in found})
    assert sizes == [4 * p, 4 * p * round(1000 / 4 / p), 4 * p * round(64_000 / 4 / p)]
    assert all(isinstance(m, Measurement) and m.p == p and m.seconds > 0 for m in found)


def _refused(rank, group):
    wrong = [
        lambda: timing.median_seconds({}),
        lambda: timing.median_seconds({"a": int}, repeats=0),
        lambda: timing.time_collectives([8, -8]),
        lambda: timing.time_collectives([]),
        lambda: timing.time_collectives([8], ["all_sum"]),
    ]
    texts = []
    for call in wrong:
        try:
            call()
        except ValueError as error:
            texts.append(str(error))
    return texts


def test_nothing_to_measure_is_refused_with_the_numbers():
    for texts in run_ranks(_refused, 2):
        assert len(texts) == 5
        assert "0 calls" in texts[0] and "repeats = 0" in texts[1]
        assert "[8, -8]" in texts[2] and "['all_sum']" in texts[4]


def test_the_notebook_can_name_what_measures_without_torch():
    import subprocess
    import sys

    code = "import sys, tpcourse.ranks.timing, tpcourse.cli.bench.collectives; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("backend", "first", "last"), [("nccl", 2**20, 2**30), ("gloo", 2**12, 2**24)])
def test_the_bench_measures_an_odd_number_of_sizes_so_that_both_ends_are_fitted(backend, first, last):
    sizes = collectives.sizes_of(backend)
    assert (sizes[0], sizes[-1], len(sizes) % 2) == (first, last, 1)


def test_the_bench_fits_every_other_size_and_reports_the_error_at_the_others():
    found = [
        Measurement(op, 2, n, 5e-5 + n / 3e11) for n in collectives.sizes_of("nccl") for op in timing.COLLECTIVES
    ]
    wrong = [m if m.num_bytes != 2**21 else Measurement(m.op, 2, m.num_bytes, 2 * m.seconds) for m in found]
    result = collectives.summary(wrong, "nccl")
    assert result.figures["median_error"] < 1e-6
    assert len(result.figures["measured"]) == 3 * 6 and len(result.figures["unseen"]) == 3 * 5
    errors = {row[0]: row[5] for row in result.rows}
    assert errors["all_reduce, 2,097,152"] == pytest.approx(50)
    assert result.figures["largest_bus_GB_per_s"]["all_reduce"] == pytest.approx(295.9, abs=0.1)
    assert "median error, not fitted" in result.table()


def test_a_recording_of_the_bench_is_what_the_lesson_reads(tmp_path):
    from tpcourse.cli.bench.record import record

    found = [Measurement(op, 4, n, 2e-4 + n / 1e9) for n in collectives.sizes_of("gloo") for op in timing.COLLECTIVES]
    record("collectives", collectives.summary(found, "gloo"), tmp_path)
    recording = costs.recorded(tmp_path)
    assert set(recording.measured) | set(recording.unseen) == set(found)
    assert median(costs.errors(costs.fit_each(recording.measured), recording.unseen)) < 1e-6


def test_the_bench_runs_on_the_ranks_that_this_machine_has_and_stops_them(monkeypatch):
    stopped, found = [], [Measurement(op, 4, n, 1e-3) for n in (16, 32, 64) for op in timing.COLLECTIVES]
    ranks = SimpleNamespace(backend="gloo", stop=lambda: stopped.append(True))
    ranks.run = lambda fn, sizes, repeats: [found] if (fn, repeats) == (timing.time_collectives, 7) else None
    monkeypatch.setattr("tpcourse.ranks.start_ranks", lambda: ranks)
    assert collectives.measure(7).figures["p"] == 4
    assert stopped


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_gpus_the_device_s_clock_is_read_and_a_longer_array_takes_longer():
    found = run_ranks(_on_gpus, 2, backend="nccl")[0]
    small, large = (next(m for m in found if m.num_bytes == n and m.op == "all_reduce") for n in (2**20, 2**28))
    assert large.seconds > 5 * small.seconds


def _on_gpus(rank, group):
    return timing.time_collectives([2**20, 2**28], repeats=5)
