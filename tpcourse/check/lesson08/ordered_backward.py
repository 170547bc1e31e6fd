"""Exercise `ordered_backward(dy, x, weight, tp)`: two products and two collectives, in the order that hides both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, Fault
from tpcourse.check.compare import Named
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson08 import common
from tpcourse.check.lesson08.common import BYTES, Inputs, by_kind, by_playing
from tpcourse.check.lesson08.trace import Moment, moments
from tpcourse.check.misconceptions import by_fault, by_playing_all
from tpcourse.check.spec import Exercise, nonzero

cases = common.tp_cases(T=(6, 9, 8), D=(4, 5, 3), N=(5, 7, 6))
GATHER, SCATTER = "all_gather", "reduce_scatter"


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """dy of all tokens for this rank's columns, its tokens of x, its rows of the weight."""
    T, D, N = case.sizes.values()
    return [
        {
            "dy": nonzero(generator, T, N),
            "x": nonzero(generator, T // case.p, D),
            "weight": nonzero(generator, N, D),
        }
        for _ in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """Each rank's tokens of dx, and its rows of dweight."""
    return _named(_dx(inputs), _dweight(inputs))


def _dx(inputs: Inputs) -> list[np.ndarray]:
    return np.split(sum(given["dy"] @ given["weight"] for given in inputs), len(inputs))


def _dweight(inputs: Inputs) -> list[np.ndarray]:
    whole = np.concatenate([given["x"] for given in inputs])
    return [given["dy"].T @ whole for given in inputs]


def _named(dx: list[np.ndarray], dweight: list[np.ndarray]) -> list[Any]:
    return [Named({"dx": a, "dweight": b}) for a, b in zip(dx, dweight, strict=True)]


def budget(case: Case, inputs: Inputs) -> Budget:
    """One gather of x, one scatter-sum of dx."""
    size = inputs[0]["x"].size
    T, D, N = case.sizes.values()
    return common.rules({GATHER: 1, SCATTER: 1}, 2 * (case.p - 1) * BYTES * size, _order, work=2 * T * D * N)


def _order(evidence: Evidence) -> Fault | None:
    N = evidence.case.sizes["N"]
    for rank in range(evidence.p):
        for moment in moments(evidence, rank):
            is_of_dx = moment.k == N  # dx = dy W adds over N, dweight = dy^T x over tokens
            if fault := (_of_dx if is_of_dx else _of_dweight)(rank, moment):
                return fault
    return None


def _of_dx(rank: int, moment: Moment) -> Fault | None:
    what = f"rank {rank} begins the product for dx"
    if not (gathers := moment.waited(GATHER)):
        return Fault("gather late", f"{what} before the all_gather of x begins")
    if all(gathers):
        return Fault("gather at once", f"{what} after waiting for the all_gather of x")
    return None


def _of_dweight(rank: int, moment: Moment) -> Fault | None:
    what = f"rank {rank} begins the product for dweight"
    if not (scatters := moment.waited(SCATTER)):
        return Fault("scatter late", f"{what} before the reduce_scatter of dx begins")
    if all(scatters):
        return Fault("scatter at once", f"{what} after waiting for the reduce_scatter of dx")
    return None


def _with(
    dx: Callable[[Inputs], list[np.ndarray]], dweight: Callable[[Inputs], list[np.ndarray]]
) -> Callable[[Evidence], list[Any]]:
    return lambda evidence: _named(dx(evidence.inputs), dweight(evidence.inputs))


def _own_dx(inputs: Inputs) -> list[np.ndarray]:
    p = len(inputs)
    return [np.split(given["dy"] @ given["weight"], p)[rank] for rank, given in enumerate(inputs)]


def _own_dweight(inputs: Inputs) -> list[np.ndarray]:
    p = len(inputs)
    return [np.split(given["dy"], p)[rank].T @ given["x"] for rank, given in enumerate(inputs)]


EXERCISE = Exercise(
    name="ordered_backward",
    values="dx and dweight are one device's",
    communication="the all_gather runs under dx's product, the reduce_scatter under dweight's",
    cases=cases,
    free=("T", "D", "N"),
    make=make,
    expected=expected,
    budget=budget,
    third=common.hidden_line,
    probe="lesson08.rank_ordered_backward",
    imports=common.SLOW,
    misconceptions=(
        *common.FIRST,
        by_playing(
            "dx not summed",
            "dx is this rank's share alone: every rank's columns used the same x, and their gradients add up.",
            "A reduce-scatter of dy W, [T, D] -> [T/p, D].",
            _with(_own_dx, _dweight),
        ),
        by_playing_all(
            "dx averaged",
            "dx is p times too small: ranks' shares of it are shares of one gradient, and their sum is the result, "
            "not their mean.",
            "Leave out the division by p. A mean is for gradients of other examples.",
            _with(lambda inputs: [dx / len(inputs) for dx in _dx(inputs)], _dweight),
        ),
        by_playing(
            "own tokens",
            "dweight knows only this rank's tokens: dy has rows of all of them, and so must x.",
            "Gather x; wait for it before the product dy^T x.",
            _with(_dx, _own_dweight),
        ),
        by_playing(
            "dweight added up",
            "dweight was added up over ranks: each rank's rows are other rows of it, and complete where they are, as x "
            "and dy have all tokens.",
            "Do not add it up. Only dx is a sum over ranks.",
            _with(_dx, lambda inputs: [np.sum(_dweight(inputs), axis=0)] * len(inputs)),
            _with(_dx, lambda inputs: [np.mean(_dweight(inputs), axis=0)] * len(inputs)),
        ),
        by_kind(
            "dweight first",
            "gather late",
            "x is gathered too late: the product for dx does not need it, and could have hidden it.",
            "The first line begins the gather. Then dx, which needs dy and the weight alone.",
        ),
        by_kind(
            "gather at once",
            "gather at once",
            "The gather is waited for before the product for dx, which does not need it.",
            "Wait for x where x is read: before the product for dweight.",
        ),
        by_kind(
            "scatter late",
            "scatter late",
            "dweight comes before the reduce-scatter of dx begins: the last product is over, and nothing hides it.",
            "dx first: it is what the other ranks wait for. dweight stays here.",
        ),
        by_kind(
            "scatter at once",
            "scatter at once",
            "The reduce-scatter is waited for before the product for dweight, which does not need dx.",
            "Wait for dx in the last line.",
        ),
        by_fault(
            "all-reduce",
            "operation",
            "Right by another operation: an all-reduce sends twice the bytes, and each rank keeps 1/p of its result.",
            "`reduce_scatter_single(mine, dx, group=tp, async_op=True)`.",
        ),
        by_kind(
            "dweight summed",
            "bytes",
            "More travels than x and dx: dweight of other ranks belongs to other rows, and is complete where it is.",
            "Only dx is a sum over ranks.",
        ),
        *common.LAST,
    ),
)
