"""Sizes that nobody has seen before: a grader's salt makes the free sizes of a check's cases grow."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from tpcourse.check.evidence import Case

VARIABLE = "TPCOURSE_SALT"
MOST = 2  # times p that a size grows at most: it keeps what p divides, and stays small


def salted(name: str, cases: Iterable[Case], free: Iterable[str]) -> list[Case]:
    """The cases of an exercise, their free sizes grown by multiples of p if TPCOURSE_SALT is set; no two sizes of a
    case that differed become equal.
    """
    salt, names = os.environ.get(VARIABLE, ""), tuple(free)
    if not salt or not names:
        return list(cases)
    random = Random(hashlib.sha256(f"{salt} {name}".encode()).digest())
    return [_grown(case, names, random) for case in cases]


def _grown(case: Case, free: tuple[str, ...], random: Random) -> Case:
    for _ in range(100):
        more = {key: case.p * random.randint(0, MOST) for key in free}
        sizes = {key: value + more.get(key, 0) for key, value in case.sizes.items()}
        if len(set(sizes.values())) >= len(set(case.sizes.values())) and any(more.values()):
            return replace(case, sizes=sizes)
    return case
