"""Runs in a rank: the answer around a block that notes how many tokens each part of it gets."""

from __future__ import annotations

from typing import Any

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson06.in_rank import note_borrowed, with_gradients


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> list[Any] | None:
    """y, dx and the gradient of every weight but the last norm's, which is not part of a block."""
    note_borrowed(outcome, answer)
    x, block, dy = given.values()
    y = answer(x.requires_grad_(), block, *groups)
    outcome.facts.update(norm=0 if block.norm1.seen is None else block.norm1.seen.shape[1], attention=block.heard)
    weights = [leaf for name, leaf in block.named_parameters() if not name.startswith("norm3")]
    return with_gradients(y, dy, [x, *weights])
