"""What each rank runs for `tpcourse bench zero`: rounds of visits, each of one variant.

All variants at a time would not fit, and would spoil each other's peak. So in each round every variant is built, warmed
up, timed and let go, in random order: a machine that warms up or is disturbed treats all alike.
"""

from __future__ import annotations

import gc
import random
import time
from dataclasses import asdict
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.cli.bench.ranks_here import let_go, progress_here
from tpcourse.cli.bench.zero_variants import NARROW, VARIANTS, Make, Run, Sizes
from tpcourse.ranks.timing import device_here
from tpcourse.train import batch, source_tokens

ON_GPU = Sizes(D=2048, H=16, L=20, T=2048, sequences=8, warm_up=4, timed=10)
ON_CPU = Sizes(D=48, H=4, L=3, T=16, sequences=2, warm_up=2, timed=3)
COUNTED_IN = 1  # the step behind whose backward bytes are counted: moments are there by then
Batches = list[tuple[Tensor, Tensor]]


def measure_here(num_visits: int | None = None) -> dict[str, Any]:
    """Runs in the rank: by variant the milliseconds of each step, the peaks, the bytes held, the first losses."""
    device = device_here()
    sizes, usual = (ON_GPU, 5) if device.type == "cuda" else (ON_CPU, 2)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    batches, order = batches_of(sizes, device), random.Random(20)  # the same on every rank
    gc.freeze()  # what is here now stays, so that letting go of a visit is quick
    for _ in range(num_visits or usual):
        for name in order.sample(list(VARIANTS), len(VARIANTS)):
            found[name].append(visit(VARIANTS[name][1], sizes, batches, device))
            _say(name, found[name][-1], device)
    gc.unfreeze()
    return {
        "backend": dist.get_backend(),
        "p": dist.get_world_size(),
        "dtype": str(NARROW).removeprefix("torch."),
        "sizes": asdict(sizes),
        "num_parameters": found["DDP"][0]["num_parameters"],
        "rows": [_row(name, visits, device) for name, visits in found.items()],
    }


def batches_of(sizes: Sizes, device: torch.device) -> Batches:
    """A batch for each step of a visit."""
    tokens, (r, p) = source_tokens(500_000).to(device), (dist.get_rank(), dist.get_world_size())
    steps = range(sizes.warm_up + sizes.timed)
    return [batch(tokens, sizes.sequences * p, sizes.T, step=step, rank=r, p=p) for step in steps]


def visit(make: Make, sizes: Sizes, batches: Batches, device: torch.device) -> dict[str, Any]:
    """One variant from nothing: built, warmed up and timed. Once this returns nothing refers to it."""
    before = _clean(device)
    run, marks, losses = make(sizes, device), [], []
    found: dict[str, Any] = {"num_parameters": sum(weight.numel() for weight in run.model.parameters())}
    _reset_peak(device)
    for number, (x, y) in enumerate(batches):
        if number >= sizes.warm_up:
            marks.append(_mark(device))
        if number == sizes.warm_up:
            found["num_mallocs"] = -_num_mallocs(device)
        losses.append(run.backward(x, y))
        if number == COUNTED_IN:
            found |= _bytes(run, before)
        run.optimizer.step()
    marks.append(_mark(device))
    found |= {"ms": _differences(marks), "losses": torch.stack(losses).tolist()}
    found["num_mallocs"] += _num_mallocs(device)
    run.end()
    return found | _peaks(before, device)


def _clean(device: torch.device) -> int:
    """Let go of all that the last visit left; the bytes that are there still."""
    let_go(device)
    dist.barrier()
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def _reset_peak(device: torch.device) -> None:
    """What building needed does not count."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peaks(before: int, device: torch.device) -> dict[str, int | None]:
    """The most bytes that tensors had, above what was there before, and the most that the allocator kept for them."""
    if device.type != "cuda":
        return {"peak": None, "reserved": None}
    return {"peak": torch.cuda.max_memory_allocated() - before, "reserved": torch.cuda.max_memory_reserved()}


def _bytes(run: Run, before: int) -> dict[str, Any]:
    """By storage, each kind apart, and by the allocator above what was there before."""
    held = run.held()
    allocated = 0 if held.allocated is None else held.allocated - before
    return {"held": dict(held), "total": held.total, "allocated": allocated}


def _num_mallocs(device: torch.device) -> int:
    """How often the allocator asked the driver: that waits for the GPU, and should be over with the warm-up."""
    return torch.cuda.memory_stats().get("num_device_alloc", 0) if device.type == "cuda" else 0


def _mark(device: torch.device) -> Any:
    """Now: on a GPU when its stream comes by, while the CPU runs ahead."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _differences(marks: list[Any]) -> list[float]:
    """Milliseconds from each mark to the next."""
    if isinstance(marks[0], float):
        return [1e3 * (end - begin) for begin, end in pairwise(marks)]
    marks[-1].synchronize()
    return [begin.elapsed_time(end) for begin, end in pairwise(marks)]


def _row(name: str, visits: list[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """A variant's figures: times and bytes of the slowest and the fullest rank, losses of the whole batch."""
    count, first = visits[0]["num_parameters"], visits[0]
    ms = over_ranks([visit["ms"] for visit in visits], device)  # [visits][timed]
    counted = over_ranks([first["total"], first["allocated"], first["num_mallocs"]], device)
    row = {
        "name": name,
        "whose": VARIANTS[name][0],
        "ms": median(sample for visit in ms for sample in visit),
        "ms_by_round": [median(visit) for visit in ms],
        "bytes_per_weight": counted[0] / count,
        "held_per_weight": {kind: size / count for kind, size in first["held"].items()},
        "allocated_per_weight": counted[1] / count or None,
        "num_mallocs": int(counted[2]),
        "losses": [loss / dist.get_world_size() for loss in over_ranks(first["losses"], device, dist.ReduceOp.SUM)],
    }
    for kind in ("peak", "reserved"):
        values = [visit[kind] for visit in visits]
        row[f"{kind}_GB"] = None if values[0] is None else median(over_ranks(values, device)) / 1e9
    return row


def over_ranks(numbers: Any, device: torch.device, op: Any = dist.ReduceOp.MAX) -> Any:
    """Each of some nested numbers, over all ranks."""
    table = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(table, op=op)
    return table.tolist()


def _say(name: str, visit: dict[str, Any], device: torch.device) -> None:
    """What a visit found, at once: a run on GPUs that is cut off has then told something."""
    if device.type == "cuda":
        text = f"{median(visit['ms']):8.1f} ms, peak {visit['peak'] / 1e9:6.2f} GB"
        progress_here(f"zero: {name:24} {text}, {visit['num_mallocs']} mallocs, loss {visit['losses'][-1]:.4f}")
