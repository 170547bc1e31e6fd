"""Runs in a rank: the answer, and what it leaves on the model."""

from __future__ import annotations

from typing import Any

from tpcourse.check.borrowed import borrowed_kernel
from tpcourse.check.evidence import Outcome


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> Any:
    """What it returns; `hooks` counts the model's parameters that still have one."""
    outcome.borrowed = borrowed_kernel(answer)
    result = answer(*given.values(), *groups)
    hooks = [getattr(weight, "_post_accumulate_grad_hooks", None) for weight in given["model"].parameters()]
    outcome.facts["hooks"] = sum(bool(some) for some in hooks)
    return result
