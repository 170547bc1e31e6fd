"""Runs in a rank: the answer, the calls that it never waits for, and what it leaves on a model."""

from __future__ import annotations

from typing import Any

from tpcourse.check.borrowed import borrowed_kernel
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson04.common import MARK
from tpcourse.check.waiting import unwaited


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """What it returns; how many calls nobody waited for, and how many of a model's parameters still have a hook."""
    outcome.borrowed = borrowed_kernel(answer)
    result = answer(*given.values(), *groups)
    outcome.facts["unwaited"] = len(unwaited(answer, outcome, ours=MARK))
    weights = given["model"].parameters() if "model" in given else ()
    hooks = [getattr(w, "_post_accumulate_grad_hooks", None) for w in weights]
    outcome.facts["hooks"] = sum(bool(some) for some in hooks)
    return result
