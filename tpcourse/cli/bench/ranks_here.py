"""What benches share that run in the ranks: words from the first one, spans of all of them."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from tpcourse.cli.bench.fresh import progress
from tpcourse.timeline import Span


def progress_here(text: str) -> None:
    """Say it once, from the first rank."""
    if dist.get_rank() == 0:
        progress(text)


def let_go(device: torch.device) -> None:
    """Give back the memory of all that nothing refers to any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def spans_of_all(spans: Iterable[Span]) -> list[list[Any]]:
    """This rank's spans and all others', as a recording has them: lists, times in whole nanoseconds."""
    mine = [[*span[:3], *(round(time, 9) for time in span[3:])] for span in spans]
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    return [span for one in ranks for span in one]
