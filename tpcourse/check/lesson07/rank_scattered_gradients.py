"""Runs in a rank: the answer, and what is left of the gradients when it has returned."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from torch import Tensor

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson07.rank_watch import Held, note_borrowed
from tpcourse.memory.storages import key_of


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """The piece; `gradients` are bytes of what backward left, `made` of what the answer made and somebody keeps, `own`
    of the memory under the piece.
    """
    note_borrowed(outcome, answer)
    weights, held = given["weights"], Held(outcome)
    gradients = [w.grad for w in weights if w.grad is not None]
    held.follow(gradients)
    left = [weakref.ref(gradient.untyped_storage()) for gradient in gradients]
    del gradients
    with held.waits(), held:
        piece = answer(*given.values(), *groups)
    most = piece.nbytes if isinstance(piece, Tensor) else 0
    if sum(held.alive().values()) > most:
        gc.collect()  # a dead circle is nobody's
    sizes = held.sizes(most, [weights, piece])
    whole = {key_of(storage) for reference in left if (storage := reference()) is not None}
    old = sum(size for key, size in sizes.items() if key in whole)
    own = piece.untyped_storage().nbytes() if isinstance(piece, Tensor) else 0
    outcome.facts.update(gradients=old, made=sum(sizes.values()) - old, own=own)
    return piece
