"""Runs in a rank: the answer, with an eye on every step of every optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson07.rank_watch import note_borrowed
from tpcourse.memory.storages import key_of, tensors_in


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """What the answer returns; `moments` are the most bytes of moments after a step, `optimizers` how many stepped."""
    note_borrowed(outcome, answer)
    outcome.facts.update(moments=0, optimizers=0)
    with _noted(outcome.facts):
        return answer(*given.values(), *groups)


@contextmanager
def _noted(facts: dict[str, Any]) -> Iterator[None]:
    seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def note(optimizer: Optimizer, *_: Any) -> None:
        facts["optimizers"] += optimizer not in seen
        seen.add(optimizer)
        facts["moments"] = max(facts["moments"], moment_bytes(seen))

    handle = register_optimizer_step_post_hook(note)
    try:
        yield
    finally:
        handle.remove()


def moment_bytes(optimizers: Any) -> int:
    """Bytes of all states but the counts of steps, each storage once."""
    states = [value for optimizer in optimizers for state in optimizer.state.values() for value in tensors_in(state)]
    storages = {key_of(storage): storage for storage in (t.untyped_storage() for t in states if _is_moment(t))}
    return sum(storage.nbytes() for storage in storages.values())


def _is_moment(tensor: Tensor) -> bool:
    return tensor.dim() > 0
