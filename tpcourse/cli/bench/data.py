"""A data-parallel training step: our buckets beside torch's DistributedDataParallel, and the curve of bucket sizes.

On GPUs a GPT of about 350 million parameters in bfloat16; on the CPU a tiny one. `exposed` is the part of the
communication for which the compute stream stands still behind backward. `paid` is what the step takes above the same
step without communication: exposed, and what communication takes from backward in memory and processors.
"""

from __future__ import annotations

from typing import Any

from tpcourse.cli.bench import Result
from tpcourse.cli.bench.calls import here
from tpcourse.cli.bench.fresh import progress

COLUMNS = ("step", "ms", "/ DDP", "calls", "communication ms", "exposed %", "paid %")


def measure(repeats: int | None) -> Result:
    """The table and the figures; `ratio` is ours at the usual size over the faster of torch's two."""
    from tpcourse import start_ranks

    ranks = start_ranks()
    progress(f"data: a training step in all variants on {ranks}")
    with ranks.patient(600):
        found = ranks.run(here, "data_parallel", "measure_here", repeats or (50 if ranks.backend == "nccl" else 10))[0]
    ranks.stop()
    return summary(found)


def summary(found: dict[str, Any]) -> Result:
    """Ratios and shares from the times of the variants."""
    ms, usual = found["ms"], f"{found['sizes']['usual_mb']:g}"
    ddp_ms, floor_ms = min(ms["ddp"], ms["ddp, views"]), ms[f"silent, {usual}"]
    curve = [_point(mb, found, ddp_ms, floor_ms) for mb in found["sizes"]["buckets_mb"]]
    best = min(curve, key=lambda point: point["step_ms"])
    serial_ms = ms[f"serial, {usual}"]
    figures = {
        **found,
        "ddp_ms": ddp_ms,
        "floor_ms": floor_ms,
        "serial_ms": serial_ms,
        "ratio": ms[f"ours, {usual}"] / ddp_ms,
        "best": best,
        "hidden": 1 - (best["step_ms"] - floor_ms) / (serial_ms - floor_ms),
        "curve": curve,
    }
    rows: list[tuple[object, ...]] = [_row(point) for point in curve]
    others = {
        "DDP": ms["ddp"],
        "DDP, gradients as views": ms["ddp, views"],
        f"ours, {usual} MB, after backward": serial_ms,
        "ours, no communication": floor_ms,
    }
    rows += [(name, value, value / ddp_ms, "", "", "", "") for name, value in others.items()]
    return Result(COLUMNS, rows, figures)


def _point(mb: float, found: dict[str, Any], ddp_ms: float, floor_ms: float) -> dict[str, float]:
    """One size of bucket; one bucket of all has the size of all."""
    step_ms, wire_ms = found["ms"][f"ours, {mb:g}"], found["ms"][f"wire, {mb:g}"]
    return {
        "bucket_mb": mb or found["num_bytes"] / 1e6,
        "step_ms": step_ms,
        "over_ddp": step_ms / ddp_ms,
        "num_calls": found["num_calls"][f"{mb:g}"],
        "communication_ms": wire_ms,
        "exposed": found["waited_ms"][f"{mb:g}"] / wire_ms,
        "paid": (step_ms - floor_ms) / wire_ms,
    }


def _row(point: dict[str, float]) -> tuple[object, ...]:
    name = f"ours, buckets of {point['bucket_mb']:.3g} MB"
    shares = (point["num_calls"], point["communication_ms"], 100 * point["exposed"], 100 * point["paid"])
    return (name, point["step_ms"], point["over_ddp"], *shares)
