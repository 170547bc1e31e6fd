"""Runs in a rank: an answer under the trace, and on a GPU its time at a size at which there is something to hide."""

from __future__ import annotations

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
from tpcourse.ranks.timing import median_seconds, single_calls

ROWS, D, N = 8192, 8192, 14336
"""Tokens of all ranks, and widths, of a layer of a large model."""
REPEATS = 20


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
    if outcome.device == "cuda" and not outcome.facts["races"]:
        outcome.facts["times"] = times(answer, groups[0], large(groups[0]))
    return result


def times(answer: Any, tp: Any, large: Large, repeats: int = REPEATS) -> dict[str, float]:
    """Seconds of the answer, of the products alone, and of one after the other: in one run, the slowest rank's."""
    calls: dict[str, Callable[[], object]] = {
        "answer": partial(answer, *large.arguments, tp),
        "alone": large.alone,
        "serial": large.serial,
    }
    return median_seconds(calls, repeats=repeats, group=tp)


def random(*shape: int) -> Tensor:
    """Random bfloat16 numbers on this rank's GPU."""
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


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
