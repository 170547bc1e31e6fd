"""The ways to time a call: back to back or one at a time, eagerly or as a captured CUDA graph. All ranks together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.ranks.timing import device_here, median_seconds

Call = Callable[[], Any]
BACK_TO_BACK, ONE_AT_A_TIME = "back to back", "one at a time"
GRAPH = ", graph"
WAYS = (BACK_TO_BACK, BACK_TO_BACK + GRAPH, ONE_AT_A_TIME, ONE_AT_A_TIME + GRAPH)
CAPTURES = 2  # calls on another stream before one is captured, so that all memory and connections are there


class Graph:
    """A call captured as a CUDA graph, with what it returned; `end` before the ranks leave their group."""

    def __init__(self, call: Call) -> None:
        self.graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(CAPTURES):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks events meanwhile
            self.result = call()

    def __call__(self) -> Any:
        self.graph.replay()
        return self.result

    def end(self) -> None:
        """Let go of the graph and its memory."""
        self.result = None
        self.graph.reset()


def tried(make: Callable[[], Any]) -> tuple[Any, str]:
    """What `make` returns on this rank and "", or None and why not: on all ranks alike."""
    made, why = None, ""
    try:
        made = make()
        if device_here().type == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # of a library, of any kind: the other variants are measured all the same
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    reasons: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(reasons, why)
    return (None, next(reason for reason in reasons if reason)) if any(reasons) else (made, "")


def works(calls: Mapping[str, Call]) -> tuple[dict[str, Call], dict[str, str]]:
    """The calls that run here, and for the others a word why not."""
    found: dict[str, Call] = {}
    skipped: dict[str, str] = {}
    for name, call in calls.items():
        _, why = tried(call)
        if why:
            skipped[name] = why
        else:
            found[name] = call
    return found, skipped


def captured(calls: Mapping[str, Call]) -> tuple[dict[str, Graph], dict[str, str]]:
    """A graph of each call that can be captured, and for the others a word why not."""
    found: dict[str, Graph] = {}
    skipped: dict[str, str] = {}
    if device_here().type != "cuda":
        return found, dict.fromkeys(calls, "a CUDA graph needs a GPU")
    for name, call in calls.items():
        graph, why = tried(lambda call=call: _replayed(Graph(call)))  # type: ignore[misc]
        if why:
            skipped[name] = why
        else:
            found[name] = graph
    return found, skipped


def _replayed(graph: Graph) -> Graph:
    graph()
    return graph


def ms_by_way(
    calls: Mapping[str, Call], graphs: Mapping[str, Call], repeats: int, in_a_row: int = 4
) -> dict[str, dict[str, float]]:
    """Way -> name -> milliseconds: eager calls and graphs interleaved in random order, the slowest rank, the median."""
    both = {(name, ""): call for name, call in calls.items()} | {(name, GRAPH): call for name, call in graphs.items()}
    found: dict[str, dict[str, float]] = {}
    for way, alone in ((BACK_TO_BACK, False), (ONE_AT_A_TIME, True)):
        times = median_seconds(both, repeats=repeats, in_a_row=1 if alone else in_a_row, alone=alone)
        for (name, more), seconds in times.items():
            found.setdefault(way + more, {})[name] = 1e3 * seconds
    return found


def far_from(result: Tensor, right: Tensor) -> float:
    """The largest error of any rank, over the largest right number; 0 is bit-equal, infinity is not even a number."""
    error = (result.float() - right.float()).abs().max() / right.float().abs().max()
    worst = torch.nan_to_num(error, nan=float("inf")).double()
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return worst.item()
