"""Which calls an answer began and never waited for: the ledger notes each wait."""

from __future__ import annotations

from typing import Any

from tpcourse.check.borrowed import functions_of, is_finished, names_in, reached
from tpcourse.check.evidence import Outcome

MARK = "mark_backward"  # begins the one call that a check's own model makes
OTHER_WAITS = {"get_future", "is_completed"}  # of which nothing tells


def unwaited(answer: Any, outcome: Outcome) -> list[str]:
    """The operations, without the mark of a check's own model; none if the answer may wait in another way."""
    begun = [event for event in outcome.events if event.is_async and event.function != MARK]
    late = [event.op for event in begun if event.wait_begin_s is None]
    return late if late and not _waits_otherwise(answer) else []


def _waits_otherwise(answer: Any) -> bool:
    """Whether the code of an answer, or of what it names in the notebook, has one of the other waits."""
    own = (value for value in reached(answer) if not is_finished(value))
    return any(OTHER_WAITS.intersection(names_in(f.__code__)) for value in own for f in functions_of(value))
