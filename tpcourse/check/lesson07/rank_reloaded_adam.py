"""Runs in a rank: the answer's optimizer, what it holds, and one step of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tpcourse.check.compare import in_words
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson07.rank_watch import note_borrowed


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> list[Any] | None:
    """The piece, its moments, and the piece after one step more; what is not there is None."""
    note_borrowed(outcome, answer)
    gradient = given.pop("gradient")
    adam = answer(*given.values(), *groups)
    outcome.facts["asked"] = list(given["read"].asked)
    if adam is None:
        return None
    piece = only_tensor(adam)
    state = adam.state.get(piece, {})
    before = [tensor.detach().clone() if isinstance(tensor, Tensor) else None for tensor in (piece, *_moments(state))]
    if piece.shape != gradient.shape:
        return [*before, piece.new_zeros(0)]
    piece.grad = gradient
    adam.step()
    return [*before, piece]


def _moments(state: dict[str, Any]) -> tuple[Any, Any]:
    return state.get("exp_avg"), state.get("exp_avg_sq")


def only_tensor(adam: Any) -> Tensor:
    """The one tensor that an AdamW steps. Raises: ValueError if it is no AdamW, or has several."""
    if not isinstance(adam, torch.optim.AdamW):
        raise ValueError(f"the answer returned {in_words(adam)}; return the torch.optim.AdamW")
    tensors = [tensor for group in adam.param_groups for tensor in group["params"]]
    if len(tensors) != 1:
        raise ValueError(f"the optimizer has {len(tensors)} tensors; give it one, the piece")
    return tensors[0]
