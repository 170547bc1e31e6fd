"""Exercise `gradient_norm(gradients, is_split, tp)`: the norm of one device's gradients, from shards and copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson05 import common
from tpcourse.check.lesson05.given import Inputs, arguments, cut, whole
from tpcourse.check.misconceptions import Misconception
from tpcourse.check.spec import Exercise, nonzero

IS_SPLIT = [False, True, True, True, False]
cases = common.cases(D=(3, 4, 5), F=(5, 8, 7))


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Gradients of a norm's scale, a column weight with its bias, a row weight with its bias."""
    D, F = case.sizes.values()
    p = case.p
    rows = zip(
        whole(nonzero(generator, D), p, leaf=False),
        cut(nonzero(generator, F, D), p, 0, leaf=False),
        cut(nonzero(generator, F), p, 0, leaf=False),
        cut(nonzero(generator, D, F), p, 1, leaf=False),
        whole(nonzero(generator, D), p, leaf=False),
        strict=True,
    )
    return arguments(gradients=[list(row) for row in rows], is_split=[list(IS_SPLIT)] * p)


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The root of all squares, each counted once."""
    return _everywhere(len(inputs), np.sqrt(sum(_split(inputs)) + _copied(inputs)))


def budget(case: Case, inputs: Inputs) -> Budget:
    """One number."""
    return common.rules(tp=common.Sums(1, 1, forward=1))


def _everywhere(p: int, norm: float) -> list[Any]:
    return [np.asarray(norm)] * p


def _squares(gradients: list[Any], is_split: bool) -> float:
    return sum(float((g.array**2).sum()) for g, cut_ in zip(gradients, IS_SPLIT, strict=True) if cut_ == is_split)


def _split(inputs: Inputs) -> list[float]:
    """For each rank the squares of its shards."""
    return [_squares(given["gradients"], True) for given in inputs]


def _copied(inputs: Inputs) -> float:
    """The squares of what every rank holds whole."""
    return _squares(inputs[0]["gradients"], False)


def _norm(of: Callable[[list[float], float, int], Any]) -> Callable[[Evidence], list[Any]]:
    """What ranks return if they compute this from (squares of each rank's shards, of the copies, p)."""
    def way(evidence: Evidence) -> list[Any]:
        found = of(_split(evidence.inputs), _copied(evidence.inputs), evidence.p)
        return [np.asarray(norm) for norm in found] if isinstance(found, list) else _everywhere(evidence.p, found)

    return way


def _norms_of_tensors(evidence: Evidence) -> list[Any]:
    """Norms of single gradients added up, not their squares."""
    every = [[np.sqrt((g.array**2).sum()) for g in given["gradients"]] for given in evidence.inputs]
    shards = sum(n for row in every for n, cut_ in zip(row, IS_SPLIT, strict=True) if cut_)
    return _everywhere(evidence.p, shards + sum(n for n, cut_ in zip(every[0], IS_SPLIT, strict=True) if not cut_))


EXERCISE = Exercise(
    name="gradient_norm",
    values="every rank returns the norm of one device's gradients",
    communication="one all_reduce of one number",
    cases=cases,
    free=("D", "F"),
    make=make,
    expected=expected,
    budget=budget,
    probe=common.PROBE,
    misconceptions=(
        *common.COMMON,
        common.by_playing(
            "not summed",
            "Each rank returns the norm of what it holds: ranks would clip by different factors, and their copies of "
            "whole weights would drift apart.",
            "Add up the squares of the shards over `tp`.",
            _norm(lambda split, copied, p: [np.sqrt(own + copied) for own in split]),
        ),
        common.by_playing(
            "copies counted p times",
            "What every rank holds whole is counted p times: its squares went into the sum over ranks on each of them.",
            "Sum over ranks for shards only; add the squares of whole gradients after it.",
            _norm(lambda split, copied, p: np.sqrt(sum(split) + p * copied)),
        ),
        common.by_playing(
            "norms added",
            "Norms are added up: a norm is the root of a sum, and roots do not add up.",
            "Add up squares: within the rank, then over ranks. One root at the very end.",
            _norm(lambda split, copied, p: sum(np.sqrt(own + copied) for own in split)),
            _norm(lambda split, copied, p: sum(np.sqrt(own) for own in split) + np.sqrt(copied)),
            _norm(lambda split, copied, p: np.sqrt(sum(np.sqrt(own) for own in split) ** 2 + copied)),
            _norms_of_tensors,
        ),
        common.by_playing(
            "averaged",
            "Squares are averaged over ranks: shards are different elements, and each counts whole.",
            "Add up, and do not divide by p.",
            _norm(lambda split, copied, p: np.sqrt(sum(split) / p + copied)),
        ),
        common.by_playing(
            "copies left out",
            "Gradients that every rank holds whole are not in the norm.",
            "They count once: add their squares behind the sum over ranks.",
            _norm(lambda split, copied, p: np.sqrt(sum(split))),
        ),
        Misconception(
            "a call each",
            lambda f: f.evidence.right and f.fault_kind in ("calls", "bytes"),
            "The norm is right, and more travels than one number: squares can be added up on the rank first.",
            "One number for all shards of this rank, then one all-reduce.",
        ),
        *common.LAST,
    ),
)
