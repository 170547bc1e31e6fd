"""What each rank runs for `tpcourse bench exposed`: forward and backward, timed, and seen as spans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from tpcourse import timeline
from tpcourse.cli.bench.exposed import ALONE, SERIAL
from tpcourse.cli.bench.ranks_here import progress_here, spans_of_all
from tpcourse.cli.bench.staged import Staged
from tpcourse.cli.bench.zero_variants import OPTIONS, Run, Sizes, ddp, new_model, ours_over, sharded
from tpcourse.memory import held
from tpcourse.ranks.timing import device_here, median_seconds
from tpcourse.train import batch, source_tokens
from tpcourse.zero import Zero3
from tpcourse.zero.flat import Flat

BUCKETS, SHARDS, FEW = "data-parallel buckets", "ZeRO stage 3", "buckets, NCCL in 4 blocks"
MOST_BLOCKS = 4  # of a kernel of NCCL's, which has up to 32 otherwise: the product keeps the other multiprocessors
ON_GPU = Sizes(D=2048, H=16, L=8, T=1024, sequences=16, warm_up=0, timed=30)
ON_CPU = Sizes(D=48, H=4, L=3, T=16, sequences=2, warm_up=0, timed=3)
BUCKET_MB = {"cuda": 25.0, "cpu": 0.05}
GAP_S = 20e-6  # kernels that follow each other within it are drawn as one


class Awaited(Zero3):
    """Stage 3 that waits for each of its collectives as soon as it has begun."""

    def __init__(self, module: torch.nn.Module, **options: Any) -> None:
        super().__init__(module, prefetch=False, **options)

    def _leave(self, flat: Flat) -> None:
        super()._leave(flat)
        self._arrive()


def measure_here(repeats: int | None = None) -> dict[str, Any]:
    """Runs in the rank: milliseconds by kind and variant, and timelines."""
    device = device_here()
    sizes = ON_GPU if device.type == "cuda" else ON_CPU
    tokens = source_tokens(500_000).to(device)
    p = dist.get_world_size()
    x, y = batch(tokens, sizes.sequences * p, sizes.T, step=0, rank=dist.get_rank(), p=p)
    found: dict[str, Any] = {"ms": {}, "timelines": []}
    for kind, variants in variants_on(device).items():
        progress_here(f"exposed: {kind}")
        runs = {name: make(sizes, device) for name, make in variants.items()}
        calls = {name: partial(run.backward, x, y) for name, run in runs.items()}
        seconds = median_seconds(calls, repeats=repeats or sizes.timed, in_a_row=2)
        found["ms"][kind] = {name: 1e3 * value for name, value in seconds.items()}
        found["timelines"] += [_drawn(kind, name, call) for name, call in calls.items() if name != ALONE]
        for run in runs.values():
            run.end()
    return {"backend": dist.get_backend(), "p": p, "sizes": asdict(sizes), **found}


def _drawn(kind: str, name: str, call: Callable[[], object]) -> dict[str, Any]:
    """The spans of all ranks in one step."""
    spans = timeline.joined(timeline.record(call, warm_up=1), GAP_S)
    return {"kind": kind, "variant": name, "spans": spans_of_all(spans)}


def staged(stage: str, sizes: Sizes, device: torch.device, dp: Any = None) -> Run:
    """Our buckets: as they are, behind backward, or not sent; over a group or the world."""
    model = new_model(sizes, device)
    parallel = Staged(model, dp=dp or dist.group.WORLD, bucket_mb=BUCKET_MB[device.type])
    parallel.stage = stage
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    return Run(model, optimizer, lambda: held(model, optimizer), parallel.remove)


def zero(stage: type[Zero3], sends: bool, sizes: Sizes, device: torch.device) -> Run:
    """Our third stage: as it is, or of one rank, which sends nothing."""
    return ours_over(dist.group.WORLD if sends else None, stage, sizes, device)


VARIANTS: dict[str, dict[str, Callable[[Sizes, torch.device], Run]]] = {
    BUCKETS: {
        ALONE: partial(staged, "silent"),
        SERIAL: partial(staged, "serial"),
        "buckets": partial(staged, "overlap"),
        "torch's DDP": ddp,
    },
    SHARDS: {
        ALONE: partial(zero, Zero3, False),
        SERIAL: partial(zero, Awaited, True),
        "prefetch": partial(zero, Zero3, True),
        "torch's fully_shard": sharded,
    },
}
"""Kind -> variant -> what makes it."""


def variants_on(device: torch.device) -> dict[str, dict[str, Callable[[Sizes, torch.device], Run]]]:
    """All of them; where there is NCCL, our buckets once more, over a group whose kernels have few blocks."""
    if device.type != "cuda":
        return VARIANTS
    options = dist.ProcessGroupNCCL.Options()
    options.config.max_ctas = MOST_BLOCKS
    few = dist.new_group(backend="nccl", pg_options=options)
    stages = {ALONE: "silent", SERIAL: "serial", "buckets": "overlap"}
    return {**VARIANTS, FEW: {name: partial(staged, stage, dp=few) for name, stage in stages.items()}}
