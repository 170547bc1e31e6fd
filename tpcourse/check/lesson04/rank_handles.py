"""Runs in a rank: the answer, the handles that it waits for, and what it leaves on the model."""

from __future__ import annotations

from typing import Any

from tpcourse.check.borrowed import borrowed_kernel, names_in
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson04.common import MARK
from tpcourse.ledger.waits import following

OTHER_WAITS = {"get_future", "is_completed"}  # nothing tells of these


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """What it returns; how many calls nobody waited for, and how many of a model's parameters still have a hook."""
    outcome.borrowed = borrowed_kernel(answer)
    waited: set[int] = set()
    with following(lambda work, _: waited.add(id(work)), any_thread=True) as works:
        result = answer(*given.values(), *groups)
        left = [work for work, events in works if id(work) not in waited and _is_own(events)]
    names = set(names_in(answer.__code__)) if hasattr(answer, "__code__") else set()
    outcome.facts["unwaited"] = len(left) if names.isdisjoint(OTHER_WAITS) else 0
    weights = given["model"].parameters() if "model" in given else ()
    hooks = [getattr(w, "_post_accumulate_grad_hooks", None) for w in weights]
    outcome.facts["hooks"] = sum(bool(some) for some in hooks)
    return result


def _is_own(events: list[Any]) -> bool:
    """Whether the answer began this call, and has to wait for it."""
    return all(event.is_async and event.function != MARK for event in events)
