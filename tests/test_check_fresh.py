"""A grader's salt: other sizes, the same divisibility, nothing equal that was different."""

from __future__ import annotations

import numpy as np
import pytest

from tpcourse.check.fresh import VARIABLE, salted
from tpcourse.check.runner import LESSONS, find

NAMES = [name for name in LESSONS if find(name).free]
DRAWN = {"pairwise_all_to_all"}  # its `make` draws every length anew


def sizes(name):
    spec = find(name)
    return [case.sizes for case in salted(spec, spec.cases(4))]


def test_every_exercise_that_sends_has_sizes_that_nobody_has_seen():
    assert set(LESSONS) - set(NAMES) == DRAWN


def test_without_a_salt_the_sizes_are_those_of_the_exercise(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert all(sizes(name) == [case.sizes for case in find(name).cases(4)] for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_salts_give_other_sizes_and_keep_what_p_divides(monkeypatch, name):
    usual = find(name).cases(4)
    seen = set()
    for salt in map(str, range(8)):
        monkeypatch.setenv(VARIABLE, salt)
        spec = find(name)
        for case, plain in zip(salted(spec, spec.cases(4)), usual, strict=True):
            more = {key: case.sizes[key] - size for key, size in plain.sizes.items()}
            assert all(n % (case.p * spec.free_step) == 0 for n in more.values()) and any(more.values()) != case.edge
            assert len(set(case.sizes.values())) >= len(set(plain.sizes.values()))
            spec.expected(case, spec.make(case, np.random.default_rng(0)))  # inputs of these sizes can be made
        seen.add(str(sizes(name)))
    assert len(seen) > 4


def test_the_same_salt_gives_the_same_sizes(monkeypatch):
    monkeypatch.setenv(VARIABLE, "a")
    assert [sizes(name) for name in NAMES] == [sizes(name) for name in NAMES]


def test_a_rank_is_sent_its_own_arguments_and_nobody_else_s(shared_ranks):
    from tpcourse.ranks.run import Each

    each = Each({1: {"x": np.ones(2)}, 3: {"x": np.zeros(2)}})
    found = shared_ranks.run(_given, "a", each)
    assert [one if one is None else one[1]["x"].tolist() for one in found] == [None, [1, 1], None, [0, 0]]


def _given(name, own):
    return None if own is None else (name, own)
