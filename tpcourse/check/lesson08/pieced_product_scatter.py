"""Exercise `pieced_product_scatter(x, weight, num_pieces, tp)`: the bug hunt, an overlap that hides nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, Fault
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson08 import common
from tpcourse.check.lesson08.common import BYTES, Inputs, by_call, by_kind, by_playing
from tpcourse.check.lesson08.trace import Moment, moments
from tpcourse.check.misconceptions import by_playing_all
from tpcourse.check.spec import Exercise, nonzero

cases = common.tp_cases(T=(12, 18, 24), K=(6, 9, 8), D=(4, 6, 10), num_pieces=(2, 3, 2))


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """As for the ring, with the number of pieces."""
    T, K, D, num_pieces = case.sizes.values()
    return [
        {"x": nonzero(generator, T, K), "weight": nonzero(generator, D, K), "num_pieces": num_pieces}
        for _ in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """Each rank's tokens of the sum over all ranks."""
    return np.split(_sum(inputs), case.p)


def _sum(inputs: Inputs) -> np.ndarray:
    return sum(given["x"] @ given["weight"].T for given in inputs)


def budget(case: Case, inputs: Inputs) -> Budget:
    """A reduce-scatter for each piece, which leaves while the next one is multiplied."""
    T, K, D, num_pieces = case.sizes.values()
    num_bytes = (case.p - 1) * BYTES * T * D // case.p
    due = f"num_pieces = {num_pieces} are"
    return common.rules({"reduce_scatter": num_pieces}, num_bytes, _order, work=T * K * D, due=due)


def _order(evidence: Evidence) -> Fault | None:
    for rank in range(evidence.p):
        begun = [moment.waited("reduce_scatter") for moment in moments(evidence, rank)]
        if not any(begun):
            is_whole = all(moment.k == evidence.case.sizes["K"] for moment in moments(evidence, rank))
            kind = "products first" if is_whole else "late"
            return Fault(kind, f"rank {rank} begins its last product, and no reduce_scatter has begun")
        faults = (_step(rank, number, moment) for number, moment in enumerate(moments(evidence, rank)))
        if fault := next(filter(None, faults), None):
            return fault
    return None


def _step(rank: int, number: int, moment: Moment) -> Fault | None:
    """What has left before a product is still on its way when it begins."""
    scatters = moment.waited("reduce_scatter")
    if scatters and scatters[-1]:
        return Fault("at once", f"rank {rank} waits for a reduce_scatter before it begins product {number}")
    return None


def _front_and_back(evidence: Evidence) -> list[Any]:
    """Pieces are runs of all tokens: each rank gets its part of each run."""
    runs = np.split(_sum(evidence.inputs), evidence.case.sizes["num_pieces"])
    return [np.concatenate([np.split(run, evidence.p)[rank] for run in runs]) for rank in range(evidence.p)]


def _first_part(evidence: Evidence) -> list[Any]:
    """Only what the first part of K gives."""
    n = evidence.case.sizes["num_pieces"]
    parts = [np.split(given["x"], n, 1)[0] @ np.split(given["weight"], n, 1)[0].T for given in evidence.inputs]
    return np.split(sum(parts), evidence.p)


EXERCISE = Exercise(
    name="pieced_product_scatter",
    values="each rank's tokens of the sum of all ranks' products",
    communication="a reduce_scatter for each piece, under way while the next product runs",
    cases=cases,
    free=("T", "K", "D"),
    free_step=6,
    make=make,
    expected=expected,
    budget=budget,
    third=common.hidden_line,
    probe="lesson08.rank_pieced_product_scatter",
    imports=common.SLOW,
    misconceptions=(
        *common.FIRST,
        by_playing(
            "front and back",
            "Each rank has tokens of other ranks: a run of the first tokens belongs to the first ranks alone, and a "
            "reduce-scatter deals it out to all.",
            "A piece takes some tokens **of every rank**: `x.view(p, -1, K)`, cut along dim 1.",
            _front_and_back,
        ),
        by_playing(
            "first part",
            "Only the first part of K is in the sum: cut along K, every number needs all parts.",
            "Cut along a dim that the product keeps.",
            _first_part,
        ),
        by_playing_all(
            "averaged",
            "The result is p times too small: the ranks' products are shares of one product over K, and their sum is "
            "the result, not their mean.",
            "Leave out the division by p. A mean is for gradients of other examples.",
            lambda evidence: [row / evidence.p for row in evidence.expected],
        ),
        by_kind(
            "untouched",
            "late",
            "Nothing can leave before the last product: the pieces are cut along K, the dim that is added over, so no "
            "number is complete before the last piece.",
            "Cut along a dim of the result: tokens, or the weight's rows. Then a piece's numbers are complete when its "
            "product is.",
        ),
        by_kind(
            "products first",
            "products first",
            "All products come before the first reduce_scatter: while anything is multiplied, nothing travels.",
            "Begin a piece's reduce-scatter right behind its product, in the same loop.",
        ),
        by_kind(
            "partial sums sent",
            "bytes",
            "Partial sums are sent, one for each part of K: num_pieces times the bytes.",
            "Cut so that each number is made, and sent, once.",
        ),
        by_kind(
            "waits in the loop",
            "at once",
            "A piece is waited for before the next product begins: now the pieces are right, and the order is not.",
            "Keep the works in a list, and wait behind the loop.",
        ),
        by_call(
            "all-reduce",
            "all_reduce",
            "An all-reduce gives every rank the whole sum: twice the bytes of a reduce-scatter, and each keeps 1/p.",
            "`reduce_scatter_single(mine, part, group=tp, async_op=True)`, for each piece.",
        ),
        by_kind(
            "reduce",
            "operation",
            "Another operation brings the sums: in a reduce all ranks send to one, over a single link.",
            "`reduce_scatter_single(mine, part, group=tp, async_op=True)`, for each piece.",
        ),
        by_kind(
            "too many calls",
            "calls",
            "More pieces than num_pieces: each costs the start of a call, and a smaller product.",
            "One product and one reduce-scatter for each piece.",
        ),
        by_kind(
            "too few calls",
            "few",
            "Fewer pieces than num_pieces: nothing travels under the first product, and the last reduce-scatter runs "
            "under none; the larger the pieces, the longer both.",
            "`chunk(num_pieces)`: one product and one reduce-scatter for each piece.",
        ),
        *common.LAST,
    ),
)
