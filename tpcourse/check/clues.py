"""From a wrong tensor of `check.same` to the likely misconception: what would the wrong algorithm give?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Wrong:
    """A tensor that differs: what each rank has, what it should have, and the one-device arguments."""

    name: str
    got: list[Any]
    expected: list[np.ndarray]
    arguments: dict[str, Any]
    is_gradient: bool

    @property
    def p(self) -> int:
        return len(self.got)


def clue(wrong: Wrong) -> str:
    """A sentence on the likely misconception, or nothing."""
    if wrong.is_gradient and any(got is None for got in wrong.got):
        fix = "use a pair of tpcourse.conjugates"
        return f"{wrong.name} never arrives: torch.distributed's collectives have no backward; {fix}."
    if any(not isinstance(a, np.ndarray) or a.shape != b.shape for a, b in zip(wrong.got, wrong.expected, strict=True)):
        return ""
    return next((text for test in (_factor, _owed, _bias, _permuted) if (text := test(wrong))), "")


def _owed(wrong: Wrong) -> str:
    """The ranks' tensors add up to the right one."""
    if len({a.shape for a in wrong.got}) > 1 or not _all_close([sum(wrong.got)] * wrong.p, wrong.expected):
        return ""
    if wrong.is_gradient:
        return f"{wrong.name} is short by the other ranks' share: who sums the gradient in backward?"
    return f"{wrong.name} is partial: the ranks' values add up to the right one. Who sums them?"


def _factor(wrong: Wrong) -> str:
    for factor, text in ((wrong.p, "p times too large: it is summed once too often"), (1 / wrong.p, "divided by p")):
        if _all_close(wrong.got, [factor * value for value in wrong.expected]):
            return f"{wrong.name} is {text}."
    return ""


def _bias(wrong: Wrong) -> str:
    for name, value in wrong.arguments.items():
        if isinstance(value, list) or wrong.is_gradient or value.shape != wrong.expected[0].shape[-value.ndim :]:
            continue
        if _all_close(wrong.got, [right + (wrong.p - 1) * value for right in wrong.expected]):
            fix = "add it once, after the sum"
            return f"{wrong.name} is too large by (p-1) x {name}: every rank adds {name} before the sum; {fix}."
    return ""


def _permuted(wrong: Wrong) -> str:
    for by in range(1, wrong.p):
        if _all_close(wrong.got, wrong.expected[by:] + wrong.expected[:by]):
            return f"{wrong.name} is right and on the wrong rank: every rank holds the share of rank r + {by}."
    return ""


def _all_close(a: list[Any], b: list[Any]) -> bool:
    pairs = list(zip(a, b, strict=True))
    return all(np.shape(x) == np.shape(y) for x, y in pairs) and all(np.allclose(x, y, rtol=1e-9) for x, y in pairs)
