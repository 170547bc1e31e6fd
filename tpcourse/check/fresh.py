"""Sizes that nobody has seen before: a grader's salt makes the free sizes of a check's cases grow."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from tpcourse.check.evidence import Case
from tpcourse.check.spec import Exercise

VARIABLE = "TPCOURSE_SALT"
MOST = 3  # times p that a size grows at most: it keeps what p divides, and stays small


def salted(spec: Exercise, cases: Iterable[Case]) -> list[Case]:
    """The cases of an exercise, their free sizes grown by multiples of `free_step` p if TPCOURSE_SALT is set; no two
    sizes of a case that differed become equal, and a case about an edge stays.
    """
    salt = os.environ.get(VARIABLE, "")
    if not salt or not spec.free:
        return list(cases)
    random = Random(hashlib.sha256(f"{salt} {spec.name}".encode()).digest())
    return [case if case.edge else _grown(spec, case, random) for case in cases]


def _grown(spec: Exercise, case: Case, random: Random) -> Case:
    for _ in range(100):
        more = {key: spec.free_step * case.p * random.randint(0, MOST) for key in spec.free}
        sizes = {key: value + more.get(key, 0) for key, value in case.sizes.items()}
        if len(set(sizes.values())) >= len(set(case.sizes.values())) and any(more.values()):
            return replace(case, sizes=sizes)
    return case
