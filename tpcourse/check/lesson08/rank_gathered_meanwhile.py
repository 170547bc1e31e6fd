"""Runs in a rank: the answer, and a gather of tokens beside a product of the same layer."""

from __future__ import annotations

from typing import Any

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson08.rank_answer import ROWS, D, Large, N, gathered, random, rows_of, run


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """The gathered pieces and the product."""
    return run(answer, given, groups, outcome, large)


def large(tp: Any) -> Large:
    """A piece [T/p, D]; x [T, D] and weight [N, D]."""
    piece, x, weight = random(rows_of(tp), D), random(ROWS, D), random(N, D)
    return Large((piece, x, weight), lambda: x @ weight.T, lambda: (gathered(piece, tp), x @ weight.T))
