"""Which calls an answer began and never waited for: the ledger notes each wait."""

from __future__ import annotations

from typing import Any

from tpcourse.check.borrowed import functions_of, mentioned, names_in
from tpcourse.check.evidence import Outcome

MARK = "mark_backward"  # begins the one call that a check's own model makes
OTHER_WAITS = {"get_future", "is_completed"}  # of which nothing tells


def unwaited(answer: Any, outcome: Outcome) -> list[str]:
    """The operations, without the mark of a check's own model; none if the answer may wait in another way."""
    begun = [event for event in outcome.events if event.is_async and event.function != MARK]
    late = [event.op for event in begun if event.wait_begin_s is None]
    return late if late and not _waits_otherwise(answer, set()) else []


def _waits_otherwise(value: Any, seen: set[int]) -> bool:
    """Whether the code of a function or class, or of what it names in the notebook, has one of the other waits."""
    if id(value) in seen or (getattr(value, "__module__", None) or "").startswith(("torch", "tpcourse")):
        return False
    seen.add(id(value))
    own = functions_of(value)
    if any(OTHER_WAITS.intersection(names_in(function.__code__)) for function in own):
        return True
    return any(_waits_otherwise(named, seen) for function in own for named in mentioned(function, ()))
