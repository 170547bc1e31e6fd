"""Runs in a rank: the answer's loss and its backward."""

from __future__ import annotations

from typing import Any

import torch

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson06.in_rank import note_borrowed, with_gradients


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> list[Any] | None:
    """The loss, dx and the gradients of this rank's weights."""
    note_borrowed(outcome, answer)
    x, mlp, target = given.values()
    loss = answer(x.requires_grad_(), mlp, target, *groups)
    outcome.facts["normed"] = 0 if mlp.norm.seen is None else mlp.norm.seen.shape[1]
    return with_gradients(loss, torch.ones_like(x[0, 0, 0]), [x, *(leaf for _, leaf in mlp.split_parameters())])
