"""Exercise `gathered_meanwhile(piece, x, weight, tp)`: a gather under a product that does not need it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, Fault
from tpcourse.check.compare import Named
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson08 import common
from tpcourse.check.lesson08.common import BYTES, Inputs, by_kind, by_playing
from tpcourse.check.lesson08.trace import moments
from tpcourse.check.spec import Exercise, nonzero

cases = common.tp_cases(rows=(3, 2, 3), D=(5, 6, 4), M=(4, 3, 5), K=(6, 5, 7), N=(7, 8, 6))


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Each rank's own piece, x and weight."""
    rows, D, M, K, N = case.sizes.values()
    return [
        {"piece": nonzero(generator, rows, D), "x": nonzero(generator, M, K), "weight": nonzero(generator, N, K)}
        for _ in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """All pieces in rank order, and this rank's product."""
    whole = np.concatenate([given["piece"] for given in inputs])
    return [_named(whole, given) for given in inputs]


def _named(whole: np.ndarray, given: dict[str, Any]) -> Named:
    return Named({"the gathered pieces": whole, "the product": given["x"] @ given["weight"].T})


def budget(case: Case, inputs: Inputs) -> Budget:
    """One all-gather, under way while the product runs."""
    rows, D, M, K, N = case.sizes.values()
    return common.rules({"all_gather": 1}, (case.p - 1) * BYTES * rows * D, _order, work=M * K * N)


def _order(evidence: Evidence) -> Fault | None:
    for rank in range(evidence.p):
        for moment in moments(evidence, rank):
            if not (gathers := moment.waited("all_gather")):
                return Fault("late", f"rank {rank} begins its product before the all_gather begins")
            if all(gathers):
                return Fault("at once", f"rank {rank} has waited for the all_gather when its product begins")
    return None


def _own_only(evidence: Evidence) -> list[Any]:
    return [_named(np.concatenate([given["piece"]] * evidence.p), given) for given in evidence.inputs]


EXERCISE = Exercise(
    name="gathered_meanwhile",
    values="all pieces in rank order, and this rank's product",
    communication="1 all_gather, begun before the product and waited for behind it",
    cases=cases,
    free=("rows", "D", "M", "K", "N"),
    make=make,
    expected=expected,
    budget=budget,
    third=common.hidden_line,
    probe="lesson08.rank_gathered_meanwhile",
    imports=common.SLOW,
    misconceptions=(
        *common.FIRST,
        by_playing(
            "own only",
            "Every place has this rank's own piece: nothing of the others is in the result.",
            "Fill an empty tensor of p times the rows by the gather; do not repeat what you have.",
            _own_only,
        ),
        by_kind(
            "late",
            "late",
            "The gather begins behind the product: by then there is nothing left to hide it under.",
            "First begin what takes long and needs no hands, then compute.",
        ),
        by_kind(
            "at once",
            "at once",
            "The gather is waited for before the product begins: one after the other, only with more lines.",
            "`async_op=True`, keep the handle, multiply, and then `work.wait()`.",
        ),
        by_kind(
            "other operation",
            "operation",
            "The values are right, and another operation brought them: the budget has one all_gather.",
            "`all_gather_single(whole, piece, group=tp, async_op=True)`.",
        ),
        by_kind(
            "pieces",
            "calls",
            "The gather was cut up, and one call is enough: every call more costs its start, and hides nothing more.",
            "Nothing waits for a first part here, so there is no reason to cut.",
        ),
        *common.LAST,
    ),
)
