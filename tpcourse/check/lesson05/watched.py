"""`in_rank.call` with an eye on memory: what autograd keeps of the forward, beside what the answer was given."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson05 import in_rank
from tpcourse.memory.saving import Packed
from tpcourse.memory.storages import key_of, storages_of, tensors_in


def call(function: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """As `in_rank.call`; notes in `held` the bytes that wait for backward, each storage once, and in `table` whether
    a table of zeros and ones is among them.
    """
    known = {key_of(storage) for tensor in tensors_in(list(given.values())) for storage in storages_of(tensor)}

    def watch(forward: Callable[[], Any]) -> Any:
        seen: list[weakref.ref[Packed]] = []

        def pack(tensor: torch.Tensor) -> Packed:
            packed = Packed(tensor)
            seen.append(weakref.ref(packed))
            return packed

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.tensor):
            y = forward()
        kept = [packed.tensor for reference in seen if (packed := reference()) is not None]
        storages = {key_of(storage): storage.nbytes() for tensor in kept for storage in storages_of(tensor)}
        outcome.facts["held"] = sum(size for key, size in storages.items() if key not in known)
        outcome.facts["table"] = any(_is_table(tensor, given["logits"].shape) for tensor in kept)
        return y

    return in_rank.call(function, given, groups, outcome, watch)


def _is_table(tensor: torch.Tensor, shape: torch.Size) -> bool:
    """Whether a tensor has a row of zeros and at most one 1 for each token, as many columns as the logits or more."""
    if tensor.dim() != 2 or tensor.shape[0] != shape[0] or tensor.shape[1] < shape[1]:
        return False
    return bool(((tensor == 0) | (tensor == 1)).all() and (tensor.sum(-1) <= 1).all())
