"""Runs in a rank: the answer, and the second product of an MLP of a large model."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson08.rank_answer import D, Large, N, random, rows_of, run, scattered


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """This rank's tokens of the sum."""
    return run(answer, given, groups, outcome, large)


def large(tp: Any) -> Large:
    """x [T, K] and weight [D, K]."""
    x, weight = random(dist.get_world_size(tp) * rows_of(tp), N), random(D, N)
    return Large((x, weight), lambda: x @ weight.T, lambda: scattered(x @ weight.T, tp))
