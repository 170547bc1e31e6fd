"""Runs in a rank: the answer, the handles that it waits for, and what it leaves on a model."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tpcourse import ledger
from tpcourse.check.borrowed import borrowed_kernel, names_in
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson04.common import MARK
from tpcourse.check.rank_side import last_outcome
from tpcourse.ledger.waits import noting_waits

OTHER_WAITS = {"get_future", "is_completed"}  # nothing tells of these


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """What it returns; how many calls nobody waited for, and how many of a model's parameters still have a hook."""
    outcome.borrowed = borrowed_kernel(answer)
    with _unwaited(outcome) as left:
        result = answer(*given.values(), *groups)
        num_left = len(left)
    names = set(names_in(answer.__code__)) if hasattr(answer, "__code__") else set()
    outcome.facts["unwaited"] = num_left if names.isdisjoint(OTHER_WAITS) else 0
    weights = given["model"].parameters() if "model" in given else ()
    hooks = [getattr(w, "_post_accumulate_grad_hooks", None) for w in weights]
    outcome.facts["hooks"] = sum(bool(some) for some in hooks)
    return result


@contextmanager
def _unwaited(outcome: Outcome) -> Iterator[list[Any]]:
    """The works of the block's asynchronous calls that nobody waited for, until now; none of them is held.

    `tpcourse.ledger.waits.following` holds them: an answer that hangs would leave it behind, and later checks count
    what is held.
    """
    works: list[Any] = []
    pending = ledger._recorder().pending
    before, hidden = pending.add, vars(pending).get("add")  # of a block around this one

    def add(handle: Any) -> None:
        if last_outcome() is outcome and handle.work is not None and _is_own(handle):
            works.append(weakref.ref(handle.work))
        before(handle)

    def note(work: Any) -> None:
        works[:] = [reference for reference in works if reference() is not work]

    pending.add = add
    try:
        with noting_waits(note, any_thread=True):
            yield works
    finally:
        if pending.add is add:  # else a later block replaced it, after this one was left behind
            del pending.add
            if hidden is not None:
                pending.add = hidden


def _is_own(handle: Any) -> bool:
    """Whether the answer began this call, and has to wait for it."""
    return all(call.event.is_async and call.event.function != MARK for call in handle.calls)
