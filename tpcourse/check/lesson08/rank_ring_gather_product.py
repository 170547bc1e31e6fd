"""Runs in a rank: the answer, and the first product of an MLP of a large model."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import linear

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson08.rank_answer import D, Large, N, gathered, random, rows_of, run


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """y of all tokens."""
    return run(answer, given, groups, outcome, large)


def large(tp: Any) -> Large:
    """x [T/p, D], weight [N, D] and bias [N]."""
    x, weight, bias = random(rows_of(tp), D), random(N, D), random(N)
    whole = gathered(x, tp)
    return Large((x, weight, bias), lambda: linear(whole, weight, bias), lambda: linear(gathered(x, tp), weight, bias))
