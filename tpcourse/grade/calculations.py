"""Answers that are calculations of the notebook itself (lesson 02) run in rank 0 when they are graded.

In the student's notebook such an answer is called in the kernel. Here the kernel judges, so the call goes to the pen.
"""

from __future__ import annotations

import copy
from typing import Any

RANK = 0


class Remote:
    """Stands in the kernel for a function of rank 0."""

    def __init__(self, ranks: Any, name: str) -> None:
        self.ranks, self.name = ranks, name

    def __call__(self, *args: Any) -> Any:
        found = self.ranks.run(call, self.name, args, "", targets=[RANK])[0]
        if found["error"]:
            raise NotImplementedError if found["stubbed"] else RuntimeError(found["error"])
        return found["result"]


def call(name: str, args: tuple[Any, ...], own: str) -> dict[str, Any]:
    """Runs in the rank: the answer with copies of the arguments; what came of it, as plain data."""
    from tpcourse.check import calculation
    from tpcourse.check.rank_side import namespace

    seen: list[str] = []
    given = copy.deepcopy(args)
    found: dict[str, Any] = {"result": None, "error": "", "stubbed": False, "seen": seen, "changed": False}
    try:
        with calculation._watched(own or "nothing", seen):
            found["result"] = calculation_plain(namespace()[name](*given))
    except Exception as error:
        found |= {"error": f"{type(error).__name__}: {error}", "stubbed": isinstance(error, NotImplementedError)}
    found["changed"] = not calculation._equal(given, args)
    return found


def calculation_plain(value: Any) -> Any:
    """Numbers of NumPy and torch as Python's, so that they travel; other objects as they are."""
    if isinstance(value, dict):
        return {calculation_plain(key): calculation_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(calculation_plain(item) for item in value) if type(value) in (list, tuple) else list(value)
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value


def attempt(spec: Any, answer: Any, arguments: tuple[Any, ...]) -> Any:
    """As `calculation.attempt`, of an answer in rank 0; the fault is found here."""
    from tpcourse.check.calculation import Trial, shown

    found = answer.ranks.run(call, spec.name, arguments, spec.own, targets=[RANK])[0]
    if found["stubbed"]:
        raise NotImplementedError
    result = found["result"]
    if found["error"]:
        return Trial(arguments, None, f"raised {found['error']} (for {shown(arguments)})", raised=True)
    if found["seen"]:
        return Trial(arguments, result, f"calls {found['seen'][0]}; this exercise writes it", borrowed=True)
    if found["changed"]:
        return Trial(arguments, result, f"changes its arguments (given {shown(arguments)})")
    fault = spec.fault(result, *arguments)
    return Trial(arguments, result, f"{fault} (for {shown(arguments)})" if fault else "")


def namespace() -> dict[str, Any]:
    """As `calculation.namespace`: the answers that rank 0 knows."""
    from tpcourse.check.calculation import CALCULATIONS
    from tpcourse.ranks.api import running

    ranks = running()[0]
    return {name: Remote(ranks, name) for name in CALCULATIONS if ranks.run(defines, name, targets=[RANK])[0]}


def install() -> None:
    """Let the check of calculations call answers in rank 0 from now on."""
    from tpcourse.check import calculation

    calculation.attempt, calculation.namespace = attempt, namespace


def defines(name: str) -> bool:
    """Runs in the rank: whether a cell defined a function of this name here."""
    from tpcourse.check.rank_side import defines as known

    return known(name)
