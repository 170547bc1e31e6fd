"""Runs in a rank: an answer under the trace, and on a GPU its time at a size at which there is something to hide."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.check.borrowed import borrowed_kernel
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson08.common import OWN
from tpcourse.check.lesson08.rank_trace import Trace
from tpcourse.ledger import Log
from tpcourse.ranks.timing import device_here, median_seconds, single_calls, slowest

ROWS, D, N = 8192, 8192, 1024
"""Tokens of all ranks, and widths: on an H200 the product takes twice as long as what moves."""
REPEATS = 20
SLOW = 20
"""An answer that takes so many times as long as one after the other is timed once."""


class Large(NamedTuple):
    """The arguments of an answer at a large size, and what it is compared with: products alone, and one after the
    other.
    """

    arguments: tuple[Any, ...]
    alone: Callable[[], object]
    serial: Callable[[], object]


def run(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome, large: Callable[[Any], Large]) -> Any:
    """What the answer returns; the outcome's facts are those of `Trace`, and on a GPU `times`."""
    outcome.borrowed = borrowed_kernel(answer, OWN)
    result = Trace(outcome).run(lambda: answer(*given.values(), *groups))
    if outcome.device == "cuda":
        outcome.log = Log(outcome.log.events)  # the answer's calls, and none of its timing
        if _largest(len(outcome.facts["races"]), groups[0]) == 0:
            outcome.facts["times"] = times(answer, groups[0], large(groups[0]))
    return result


def times(answer: Any, tp: Any, large: Large, repeats: int = REPEATS) -> dict[str, float]:
    """Seconds of the answer, of the products alone, and of one after the other: in one run, the slowest rank's."""
    calls: dict[str, Callable[[], object]] = {
        "answer": partial(answer, *large.arguments, tp),
        "alone": large.alone,
        "serial": large.serial,
    }
    once = {name: _seconds(call, tp) for name, call in calls.items()}
    if once["answer"] > SLOW * once["serial"]:
        return once
    return median_seconds(calls, repeats=repeats, group=tp)


def _seconds(call: Callable[[], object], tp: Any) -> float:
    """Seconds of the second call: the first one may load kernels."""
    taken = 0.0
    for _ in range(2):
        _synchronize()
        begin_s = time.perf_counter()
        call()
        _synchronize()
        taken = time.perf_counter() - begin_s
    return _largest(taken, tp)


def _largest(number: float, tp: Any) -> float:
    """The largest of the group's numbers: what one rank decides by it, all decide."""
    return slowest([[float(number)]], tp)[0][0]


def _synchronize() -> None:
    if device_here().type == "cuda":
        torch.cuda.synchronize()


def random(*shape: int) -> Tensor:
    """Random float64 numbers on this rank's GPU.

    Kernels of such products end block by block, and leave multiprocessors to a collective. Those of bfloat16 hold on
    to all of them from the first number to the last, and what NCCL moves beside them waits whatever the order is.
    """
    return torch.randn(*shape, dtype=torch.float64, device="cuda")


def rows_of(tp: Any) -> int:
    """Tokens of each rank: a multiple of 128, as products like it."""
    return ROWS // dist.get_world_size(tp) // 128 * 128


def gathered(piece: Tensor, tp: Any) -> Tensor:
    """All ranks' pieces, one below the other."""
    whole = piece.new_empty(dist.get_world_size(tp) * len(piece), *piece.shape[1:])
    single_calls()[0](whole, piece, group=tp)
    return whole


def scattered(whole: Tensor, tp: Any) -> Tensor:
    """This rank's piece of the sum."""
    piece = whole.new_empty(len(whole) // dist.get_world_size(tp), *whole.shape[1:])
    single_calls()[1](piece, whole, group=tp)
    return piece
