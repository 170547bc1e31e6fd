"""How long calls take on the ranks. What runs here runs in each rank, on all of them together.

Variants alternate in random order, so that a machine that warms up or is disturbed treats all alike; the slowest rank
counts, because the others wait for it; the median of many samples is reported.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, TypeVar

from tpcourse.costs import Measurement

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], object]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
WARM_UP = 2  # samples of each call that do not count
HELD_BY = 8  # products that keep a GPU busy while the CPU runs ahead


def median_seconds(
    calls: Mapping[Key, Call],
    *,
    repeats: int = 20,
    in_a_row: int = 4,
    before: Mapping[Key, Call] | None = None,
    alone: bool = False,
    group: Any = None,
) -> dict[Key, float]:
    """Seconds of each call: in random order, the slowest rank's time, the median over `repeats` samples.

    A sample is one call that brings the ranks together, then `in_a_row` calls on the clock; on GPUs the clock is the
    device's own (CUDA events) and the CPU runs ahead, so launches are hidden as they are in training. `before` is
    called ahead of a sample, untimed. With `alone` each call begins once all ranks have met and their devices are
    idle, so that its launches count. Traffic: besides the calls, one all-reduce of the samples at the end, and with
    `alone` one of a number before each call; over `group`, or the world.
    Raises: ValueError for no call, repeats < 1 or in_a_row < 1.
    Trap: every rank must pass the same calls in the same order.
    """
    if not calls or repeats < 1 or in_a_row < 1:
        raise ValueError(f"{len(calls)} calls, repeats = {repeats}, in_a_row = {in_a_row}: all must be 1 or more")
    order = random.Random(20)  # the same on every rank
    clock, samples = _clock(alone, group), {key: [0.0] * repeats for key in calls}
    for sample in range(-WARM_UP, repeats):
        for key in order.sample(list(calls), len(calls)):
            if before and key in before:
                before[key]()
            seconds = clock(calls[key], in_a_row)
            if sample >= 0:
                samples[key][sample] = seconds
    return {key: median(row) for key, row in zip(samples, slowest(list(samples.values()), group), strict=True)}


def time_collectives(
    sizes: Sequence[int], ops: Sequence[str] = COLLECTIVES, repeats: int = 20, in_a_row: int = 4, group: Any = None
) -> list[Measurement]:
    """Measurements of torch's collectives over `group` or the world, for whole arrays of about these bytes, in float32.

    Sizes are rounded to whole elements for every rank, and never 0. All-reduce is timed in place and the others into
    memory that is there already, as nccl-tests does; data are random.
    Raises: ValueError for a size that is not above 0, an operation that is not in COLLECTIVES, or no size.
    """
    import torch.distributed as dist

    p = dist.get_world_size(group)
    unknown = [op for op in ops if op not in COLLECTIVES]
    if unknown or not sizes or min(sizes) <= 0:
        known = ", ".join(COLLECTIVES)
        raise ValueError(f"sizes = {list(sizes)}, ops = {list(ops)}: give sizes above 0, ops out of {known}")
    lengths = sorted({max(1, round(size / 4 / p)) * p for size in sizes})  # elements, divisible by p
    calls, before = _calls(lengths, ops, p, group)
    seconds = median_seconds(calls, repeats=repeats, in_a_row=in_a_row, before=before)
    return [Measurement(op, p, 4 * length, took) for (op, length), took in seconds.items()]


def _calls(
    lengths: Sequence[int], ops: Sequence[str], p: int, group: Any
) -> tuple[dict[Any, Call], dict[Any, Call]]:
    """(operation, length) -> the call, and what puts back its input: repeated sums in place would overflow."""
    import torch
    import torch.distributed as dist

    gather, scatter = single_calls()
    data, work = (torch.randn(lengths[-1], device=device_here()) for _ in range(2))
    calls: dict[Any, Call] = {}
    before: dict[Any, Call] = {}
    for n in lengths:
        known: dict[str, Call] = {
            "all_reduce": partial(dist.all_reduce, work[:n], group=group),
            "all_gather": partial(gather, work[:n], data[: n // p], group=group),
            "reduce_scatter": partial(scatter, work[: n // p], data[:n], group=group),
        }
        calls.update({(op, n): known[op] for op in ops})
        before["all_reduce", n] = partial(work[:n].copy_, data[:n])
    return calls, before


def single_calls() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Torch's all-gather and reduce-scatter of single tensors, which torch 2.13 renamed."""
    import torch.distributed as dist

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather, getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _clock(alone: bool = False, group: Any = None) -> Callable[[Call, int], float]:
    """(call, how often) -> seconds a call, after one call that brings the ranks together."""
    device = device_here()
    if alone:
        return _alone_clock(device, group)
    return _cpu_clock if device.type == "cpu" else _gpu_clock(device)


def _cpu_clock(call: Call, in_a_row: int) -> float:
    call()
    begin_s = time.perf_counter()
    for _ in range(in_a_row):
        call()
    return (time.perf_counter() - begin_s) / in_a_row


def _gpu_clock(device: Any) -> Callable[[Call, int], float]:
    import torch

    square = torch.randn(4096, 4096, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(square)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def clock(call: Call, in_a_row: int) -> float:
        torch.cuda.synchronize(device)
        for _ in range(HELD_BY):
            torch.mm(square, square, out=product)
        call()
        begin.record()
        for _ in range(in_a_row):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / in_a_row

    return clock


def _alone_clock(device: Any, group: Any) -> Callable[[Call, int], float]:
    """The ranks meet, and their devices are idle, before each call."""
    import torch
    import torch.distributed as dist

    number = torch.zeros(1, device=device)

    def once(call: Call) -> float:
        dist.all_reduce(number, group=group)
        if device.type == "cpu":
            begin_s = time.perf_counter()
            call()
            return time.perf_counter() - begin_s
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(device)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    return lambda call, in_a_row: sum(once(call) for _ in range(in_a_row)) / in_a_row


def slowest(samples: list[list[float]], group: Any = None) -> list[list[float]]:
    """The largest over ranks, sample by sample."""
    import torch
    import torch.distributed as dist

    table = torch.tensor(samples, dtype=torch.float64, device=device_here())
    dist.all_reduce(table, op=dist.ReduceOp.MAX, group=group)
    return table.tolist()


def device_here() -> Any:
    """Where this rank's tensors live: the card that its backend talks from, or the CPU."""
    import torch
    import torch.distributed as dist

    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
