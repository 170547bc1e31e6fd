"""Runs in each rank: a call, and what the rank did when in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tpcourse.timeline.span import Span

WARM_UP = 3
MARK = "tpcourse: recorded"
"""The range that the recorded calls are in."""


def record(call: Callable[[], object], *, times: int = 1, group: Any = None, warm_up: int = WARM_UP) -> list[Span]:
    """This rank's spans of `times` calls in a row, behind some that do not count; all ranks must call it together.

    On a GPU from torch's profiler, elsewhere from the ledger. 0 is when the group's ranks had all begun to record.
    Traffic: two all-reduces of one number, before and after.
    """
    import torch.distributed as dist

    for _ in range(warm_up):
        call()
    return (_profiled if dist.get_backend(group) == "nccl" else _listed)(call, times, group)


def _profiled(call: Callable[[], object], times: int, group: Any) -> list[Span]:
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function

    from tpcourse.timeline.kernels import from_profiler

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        _meet(group)  # so that ranks begin together
        torch.cuda.synchronize()
        with record_function(MARK):
            for _ in range(times):
                call()
            torch.cuda.synchronize()
    events = list(profiler.profiler.kineto_results.events())
    begin_ns = begin_of(events)
    spans = from_profiler(events, dist.get_rank(), begin_ns)
    moved_s = (_agreed(begin_ns, group) - begin_ns) / 1e9
    return [s._replace(begin_s=s.begin_s - moved_s, end_s=s.end_s - moved_s) for s in spans if s.begin_s >= 0]


def begin_of(events: Iterable[Any]) -> int:
    """When the calls began, on the clock of the profiler's own events."""
    return min(event.start_ns() for event in events if event.name() == MARK)


def _listed(call: Callable[[], object], times: int, group: Any) -> list[Span]:
    """The ledger's view: what lies between calls and waits is computing."""
    from time import monotonic_ns

    from tpcourse.ledger import ledger
    from tpcourse.timeline.span import from_ledger

    _meet(group)
    origin_s = _agreed(monotonic_ns(), group) / 1e9
    with ledger() as log:
        for _ in range(times):
            call()
    if not log.events:
        raise ValueError("the call made 0 collectives, so the ledger has nothing to show: record one that communicates")
    return [s._replace(begin_s=s.begin_s - origin_s, end_s=s.end_s - origin_s) for s in from_ledger(log)]


def _meet(group: Any) -> None:
    """All ranks are here; on a GPU its stream is too."""
    import torch
    import torch.distributed as dist

    from tpcourse.ranks.timing import device_here

    dist.all_reduce(torch.zeros(1, device=device_here()), group=group)


def _agreed(time_ns: int, group: Any) -> int:
    """The latest of all ranks' times."""
    import torch
    import torch.distributed as dist

    from tpcourse.ranks.timing import device_here

    latest = torch.tensor([time_ns], device=device_here())  # int64: exact
    dist.all_reduce(latest, op=dist.ReduceOp.MAX, group=group)
    return int(latest.item())
