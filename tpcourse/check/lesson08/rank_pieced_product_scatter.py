"""Runs in a rank: the answer, and the second product of an MLP of a large model in two pieces."""

from __future__ import annotations

from typing import Any

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson08 import rank_ring_product_scatter
from tpcourse.check.lesson08.rank_answer import Large, run

PIECES = 2


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """This rank's tokens of the sum."""
    return run(answer, given, groups, outcome, large)


def large(tp: Any) -> Large:
    """x [T, K] and weight [D, K], in two pieces."""
    found = rank_ring_product_scatter.large(tp)
    return found._replace(arguments=(*found.arguments, PIECES))
