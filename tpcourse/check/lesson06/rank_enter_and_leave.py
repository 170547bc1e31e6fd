"""Runs in a rank: the answer around a norm that notes which tokens it gets."""

from __future__ import annotations

from typing import Any

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson06.in_rank import note_borrowed, with_gradients


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> list[Any] | None:
    """The norm's input, y and dx."""
    note_borrowed(outcome, answer, "tpcourse.conjugates")
    x, norm, dy = given.values()
    results = with_gradients(answer(x.requires_grad_(), norm, *groups), dy, [x])
    if results is None or norm.seen is None:
        return None if results is None else [None, *results]
    outcome.facts["held"] = norm.seen.untyped_storage().nbytes()
    return [norm.seen.clone(), *results]  # a slice of x is told by its bytes
