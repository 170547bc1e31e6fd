"""What an exercise is made of, for the machinery in `runner.py`; one module per exercise fills one in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.misconceptions import Misconception
from tpcourse.check.report import Line

MOST_RANKS = 4


@dataclass(frozen=True)
class Exercise:
    """All that a check knows of one exercise. `make` draws each rank's arguments, `expected` computes the answer.

    `values` and `communication` are what a passed check says. `third` judges what else an exercise is about, such
    as memory or overlap: one more line, in state `blocked` on a machine that cannot measure it. `probe` names a
    module of tpcourse.check whose `call(function, given, groups, outcome)` the ranks run in place of the plain
    call: where backward counts too. `free` names sizes that may grow by multiples of `free_step` p (a grader's salt
    does that). `imports` are modules that take long to import: all ranks do it before the first case, so that none
    waits for another's import in a collective.
    """

    name: str
    values: str
    communication: str
    cases: Callable[[int], list[Case]]
    make: Callable[[Case, np.random.Generator], list[dict[str, Any]]]
    expected: Callable[[Case, list[dict[str, Any]]], list[Any]]
    budget: Callable[[Case, list[dict[str, Any]]], Budget]
    misconceptions: tuple[Misconception, ...] = ()
    may_change: tuple[str, ...] = ()
    third: Callable[[list[Evidence]], Line] | None = None
    probe: str = ""
    free: tuple[str, ...] = ()
    free_step: int = 1
    imports: tuple[str, ...] = ()


def one_group(p: int, world_size: int, *, axis: str = "group", edge: bool = False, **sizes: Any) -> Case:
    """A case with one group of p ranks: the last ones of the first four, so that its ranks are not global ranks."""
    top = min(MOST_RANKS, world_size)
    members = tuple(range(top - p, top))
    return Case(members, {axis: (members,)}, sizes, edge)


def group_sizes(world_size: int) -> list[int]:
    """The sizes of group that a check uses: 2, 3 and 4 where the world has as many ranks."""
    return list(range(2, min(MOST_RANKS, world_size) + 1))


def nonzero(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Random float64 values of either sign, none near zero."""
    return generator.uniform(0.5, 1.5, shape) * generator.choice([-1.0, 1.0], shape)
