"""Runs in a rank: the answer, and the backward of the first product of an MLP of a large model."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson08.rank_answer import D, Large, N, gathered, random, rows_of, run, scattered


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """dx and dweight."""
    return run(answer, given, groups, outcome, large)


def large(tp: Any) -> Large:
    """dy [T, N], x [T/p, D] and weight [N, D]."""
    rows = rows_of(tp)
    dy, x, weight = random(dist.get_world_size(tp) * rows, N), random(rows, D), random(N, D)
    whole = gathered(x, tp)
    return Large(
        (dy, x, weight),
        lambda: (dy @ weight, dy.T @ whole),
        lambda: (scattered(dy @ weight, tp), dy.T @ gathered(x, tp)),
    )
