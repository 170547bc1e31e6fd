"""What each rank runs for `tpcourse bench overlap`: each variant at each shape, checked, timed, and seen as spans."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.distributed as dist

from tpcourse import timeline
from tpcourse.cli.bench import overlap_layers
from tpcourse.cli.bench.overlap_variants import (
    FUSED,
    ON_CPU,
    ON_GPU,
    PLAIN,
    PRODUCTS,
    SERIALS,
    Call,
    Problem,
    Shape,
    allow_symmetric_memory,
)
from tpcourse.cli.bench.overlap_ways import captured, far_from, ms_by_way, works
from tpcourse.cli.bench.ranks_here import progress_here, spans_of_all
from tpcourse.ranks.timing import device_here
from tpcourse.timeline.span import spans_of

DRAWN = ("serial", "popular", "ring", "peer", FUSED)
"""Variants whose timeline is kept, at the first shape of each kind."""
TRIES = 5


def measure_here(repeats: int | None = None, with_graphs: bool = True) -> dict[str, Any]:
    """Runs in the rank: milliseconds and errors by shape and variant, and timelines."""
    device = device_here()
    allow_symmetric_memory(device)
    shapes, number = (ON_GPU, repeats or 50) if device.type == "cuda" else (ON_CPU, repeats or 5)
    problems = []
    for kind, of_kind in shapes.items():
        for shape in of_kind:
            progress_here(f"overlap: {kind}, {shape}")
            problems.append(measured(Problem(kind, shape, device), number, with_graphs))
    problems += overlap_layers.measure(number, with_graphs)
    return {
        "backend": dist.get_backend(),
        "p": dist.get_world_size(),
        "repeats": number,
        "problems": problems,
        "timelines": [one for kind, of_kind in shapes.items() for one in timelines(kind, of_kind[0], device)],
    }


def measured(
    problem: Problem, repeats: int, with_graphs: bool, names: Collection[str] | None = None
) -> dict[str, Any]:
    """One shape: which variants run, how far each is from the plain answer, how long each takes by way of timing.

    Of all variants, or of those named.
    """
    shape = problem.shape
    calls, skipped = works({name: call for name, call in problem.calls().items() if names is None or name in names})
    graphs, uncaptured = captured(calls) if with_graphs else ({}, {})
    errors = _errors(calls, graphs)
    found = {
        "kind": problem.kind,
        "shape": [shape.M, shape.K, shape.N],
        "dtype": shape.dtype,
        "gemm": list(PRODUCTS),
        "serial": list(SERIALS),
        "torchs": [name for name in (FUSED,) if name in calls],
        "ms": ms_by_way(calls, graphs, repeats),
        "errors": errors,
        "skipped": skipped,
        "not_captured": uncaptured,
    }
    for graph in graphs.values():
        graph.end()
    return found


def _errors(calls: dict[str, Call], graphs: dict[str, Any]) -> dict[str, float]:
    """Of each variant that computes the sum or the gather, and of its graph: the larger."""
    right = calls[PLAIN]()
    names = [name for name in calls if name not in PRODUCTS]
    errors = {name: far_from(calls[name](), right) for name in names}
    return {
        name: max(error, far_from(graphs[name](), right)) if name in graphs else error for name, error in errors.items()
    }


def timelines(kind: str, shape: Shape, device: torch.device) -> list[dict[str, Any]]:
    """The spans of all ranks for the variants that are drawn: of some calls the shortest, by all ranks' clocks.

    Under a profiler a call may be launched late. Last of all: on the CPU the spans come from the ledger, which is in
    the way of times.
    """
    calls, _ = works({name: call for name, call in Problem(kind, shape, device).calls().items() if name in DRAWN})
    found = []
    for name, call in calls.items():
        spans = min((spans_of_all(timeline.record(call)) for _ in range(TRIES)), key=length)
        found.append({"kind": kind, "shape": [shape.M, shape.K, shape.N], "variant": name, "spans": spans})
    return found


def length(spans: list[list[Any]]) -> float:
    """Seconds from the first begin to the last end on any rank."""
    rows = spans_of(spans)
    return max(row.end_s for row in rows) - min(row.begin_s for row in rows)
