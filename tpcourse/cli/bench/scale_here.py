"""What each rank runs for `tpcourse bench scale`: the same work in groups of 1, 2, 4 ranks, and so on.

The groups of a number are blocks of neighbours that all work at a time; the slowest rank of all counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from tpcourse.cli.bench import overlap_here, zero_here, zero_variants
from tpcourse.cli.bench.overlap_variants import (
    FUSED,
    GATHER,
    PLAIN,
    PRODUCTS,
    SCATTER,
    Problem,
    Shape,
    allow_symmetric_memory,
)
from tpcourse.cli.bench.ranks_here import let_go, progress_here
from tpcourse.cli.bench.scale_models import Groups, models, pairs
from tpcourse.cli.bench.zero_variants import Sizes
from tpcourse.ranks.timing import device_here, time_collectives
from tpcourse.zero import Zero1, Zero2, Zero3

BUS_BYTES = {"cuda": (2**20, 2**26, 2**30), "cpu": (2**12, 2**18)}
SHAPES = {
    "cuda": ((GATHER, Shape(16384, 8192, 4096)), (SCATTER, Shape(16384, 4096, 8192))),
    "cpu": ((GATHER, Shape(48, 32, 24, "float32")), (SCATTER, Shape(48, 24, 32, "float32"))),
}
"""What a rank multiplies at 2; at more once as it is, and once a share of the same whole."""
TIMED = (*PRODUCTS, PLAIN, FUSED, "serial", "ring", "peer", "auto")
ZERO = {
    "cuda": Sizes(D=2048, H=16, L=8, T=1024, sequences=16, warm_up=3, timed=8),
    "cpu": Sizes(D=48, H=4, L=2, T=16, sequences=1, warm_up=2, timed=2),
}
STAGES = {1: Zero1, 2: Zero2, 3: Zero3}


def measure_here(repeats: int | None = None) -> dict[str, Any]:
    """Runs in the rank: the rows of every part, for each number of ranks."""
    device, groups = device_here(), groups_by_size()
    number = repeats or (20 if device.type == "cuda" else 3)
    parts: dict[str, Callable[[Groups, int], Any]] = {
        "bus": bus,
        "model": models,
        "pair": pairs,
        "problems": problems,
        "zero": stages,
    }
    found: dict[str, Any] = {"backend": dist.get_backend(), "p": dist.get_world_size()}
    for name, part in parts.items():
        progress_here(f"scale: {name}")
        found[name] = part(groups, number)
        let_go(device)
    return found


def groups_by_size() -> Groups:
    """1, 2, 4 and so on, as long as it divides the world -> this rank's group of so many neighbours; None for 1."""
    rank, p = dist.get_rank(), dist.get_world_size()
    groups: Groups = {1: None}
    size = 2
    while p % size == 0:
        blocks = [dist.new_group(list(range(first, first + size))) for first in range(0, p, size)]
        groups[size] = blocks[rank // size]
        size *= 2
    return groups


def bus(groups: Groups, repeats: int) -> list[dict[str, Any]]:
    """Microseconds and bus bandwidth of three collectives."""
    found = []
    for p, group in groups.items():
        for one in time_collectives(BUS_BYTES[device_here().type], repeats=repeats, group=group) if group else ():
            us, speed = 1e6 * one.seconds, one.bus_bytes_per_s / 1e9
            found.append({"op": one.op, "num_bytes": one.num_bytes, "p": p, "us": us, "bus_GBps": speed})
    return found


def problems(groups: Groups, repeats: int) -> list[dict[str, Any]]:
    """Gather + product and product + scatter-sum in every form; see `overlap.rows_of`."""
    device, found = device_here(), []
    for p, group in groups.items():
        if group is None:
            continue
        allow_symmetric_memory(device, group)
        for kind, shape in SHAPES[device.type]:
            for one in dict.fromkeys((shape, share_of(kind, shape, p))):
                progress_here(f"scale: {kind} on {p}, {one}")
                problem = Problem(kind, one, device, group)
                found.append({"p": p, **overlap_here.measured(problem, repeats, True, TIMED)})
    return found


def share_of(kind: str, shape: Shape, p: int) -> Shape:
    """A rank's part at p of what two ranks have together: columns of the gather's weight, rows of the scatter's."""
    if kind == GATHER:
        return Shape(shape.M, shape.K, 2 * shape.N // p, shape.dtype)
    return Shape(shape.M, 2 * shape.K // p, shape.N, shape.dtype)


def stages(groups: Groups, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of a step, bytes a weight and the peak of each of ZeRO's stages; each is built and let go."""
    device = device_here()
    sizes = ZERO[device.type]
    batches, found = zero_here.batches_of(sizes, device), []
    for p, group in groups.items():
        for number, stage in STAGES.items():
            make = partial(zero_variants.ours_over, group, stage)
            found.append({"stage": number, "p": p, **_stage(zero_here.visit(make, sizes, batches, device), device)})
    return found


def _stage(visit: dict[str, Any], device: torch.device) -> dict[str, Any]:
    *ms, total, peak = zero_here.over_ranks([*visit["ms"], visit["total"], visit["peak"] or 0], device)
    return {"ms": median(ms), "bytes_per_weight": total / visit["num_parameters"], "peak_GB": peak / 1e9 or None}
