"""Runs in a rank: the answer as it is; it calls backward itself."""

from __future__ import annotations

from typing import Any

from tpcourse.check.compare import in_words
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson05.common import RETURNED
from tpcourse.check.lesson05.in_rank import settled
from tpcourse.check.lesson06.in_rank import note_borrowed


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """What the answer returns.

    Raises: TypeError for something else than a list.
    """
    note_borrowed(outcome, answer)
    gradients = answer(*given.values(), *groups)
    if gradients is None or isinstance(gradients, list | tuple):
        return None if gradients is None else [settled(gradient) for gradient in gradients]
    raise TypeError(f"{RETURNED} {in_words(gradients)}: return a list with the gradient of every weight")
