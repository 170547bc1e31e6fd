"""Exercise `ring_product_scatter(x, weight, tp)`: sums travel round a ring, each under the next product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, Fault
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson08 import common
from tpcourse.check.lesson08.common import BYTES, Inputs, by_kind, by_playing
from tpcourse.check.lesson08.trace import Moment, numbered
from tpcourse.check.spec import Exercise, nonzero

cases = common.tp_cases(T=(6, 9, 8), K=(5, 4, 6), D=(4, 5, 3))


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """All tokens on every rank, of which each has its columns, and its columns of the weight."""
    T, K, D = case.sizes.values()
    return [{"x": nonzero(generator, T, K), "weight": nonzero(generator, D, K)} for _ in range(case.p)]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """Each rank's tokens of the sum over all ranks."""
    return _sums(inputs, lambda rank, j: rank)


def _sums(inputs: Inputs, owner: Callable[[int, int], int], terms: int | None = None) -> list[Any]:
    """y of each rank r, if `terms` ranks r - j add their products for the tokens of rank owner(r, j)."""
    p = len(inputs)
    parts = [np.split(given["x"] @ given["weight"].T, p) for given in inputs]
    return [sum(parts[(r - j) % p][owner(r, j) % p] for j in range(terms or p)) for r in range(p)]


def budget(case: Case, inputs: Inputs) -> Budget:
    """p - 1 messages of one rank's tokens, each under way while the next product runs."""
    T, K, D = case.sizes.values()
    calls = {"send": case.p - 1, "recv": case.p - 1}
    return common.rules(calls, (case.p - 1) * BYTES * T // case.p * D, _order, work=T * K * D)


def _order(evidence: Evidence) -> Fault | None:
    T, K, D = evidence.case.sizes.values()
    for rank in range(evidence.p):
        found = numbered(evidence, rank, T // evidence.p * K * D)
        if found and not found[-1][1].waited("send"):
            return Fault("serial", f"on rank {rank} the last product begins, and nothing has been sent yet")
        for piece, moment in found:
            if piece and (fault := _step(rank, piece, moment)):
                return fault
    return None


def _step(rank: int, piece: int, moment: Moment) -> Fault | None:
    """When product `piece` begins, the sum before it has left, and what comes has not been waited for."""
    what = f"on rank {rank} product {piece} begins"
    if len(moment.waited("send")) < piece:
        return Fault("behind", f"{what} before the sum of the last one is sent on")
    if moment.waited("recv")[piece - 1]:
        return Fault("at once", f"{what} after waiting for the sum that it will be added to")
    return None


EXERCISE = Exercise(
    name="ring_product_scatter",
    values="each rank's tokens of the sum of all ranks' products",
    communication="p - 1 messages, each begun before a product and waited for behind it",
    cases=cases,
    free=("T", "K", "D"),
    make=make,
    expected=expected,
    budget=budget,
    third=common.hidden_line,
    probe="lesson08.rank_ring_product_scatter",
    imports=common.SLOW,
    misconceptions=(
        *common.FIRST,
        by_playing(
            "turned",
            "Products for tokens of different ranks were added up: the ring goes to the right and the loop the other "
            "way. On two ranks both are the same.",
            "What comes in step s left rank r - 1 in step s - 1: it is for owner (r - 1) - 1 - (s - 1) = r - 1 - s.",
            lambda evidence: _sums(evidence.inputs, lambda r, j: r - 2 * j),
        ),
        by_playing(
            "own first",
            "Each rank ends with the tokens of rank r + 1: it began with its own, and the sum that a rank begins is "
            "finished by its left neighbour.",
            "Begin with the tokens of r - 1; then this rank's own come last, and their sum stays here.",
            lambda evidence: _sums(evidence.inputs, lambda r, j: r + 1),
        ),
        by_playing(
            "never added",
            "Each rank sends on its own product, and what came is dropped: only two ranks' products are in the sum.",
            "Add what came to your product before you send it on.",
            lambda evidence: _sums(evidence.inputs, lambda r, j: r, terms=2),
        ),
        by_playing(
            "own missing",
            "This rank's own product is not in its sum: what came last was returned as it is.",
            "The last step adds too; it only does not send.",
            lambda evidence: [
                a - b
                for a, b in zip(
                    _sums(evidence.inputs, lambda r, j: r),
                    _sums(evidence.inputs, lambda r, j: r, terms=1),
                    strict=True,
                )
            ],
        ),
        by_playing(
            "averaged",
            "The sum was divided by p: the ranks' products are shares of one product over K, and their sum is the "
            "result, not their mean.",
            "Add up, and leave it as it is. A mean is for gradients of other examples.",
            lambda evidence: [row / evidence.p for row in evidence.expected],
        ),
        by_kind(
            "serial in disguise",
            "serial",
            "The whole product comes first, and then the ring: no byte leaves before the last row is there.",
            "Multiply within the loop, the tokens of one rank at a time.",
        ),
        by_kind(
            "behind",
            "behind",
            "A sum waits for the next product before it leaves, though it is complete.",
            "`pass_on` as soon as the sum is made, at the end of the step.",
        ),
        by_kind(
            "waits at once",
            "at once",
            "A product waits for the sum that it will be added to: it does not need it before it is done.",
            "Multiply into a tensor of its own, then wait, then add.",
        ),
        by_kind(
            "reduce",
            "operation",
            "The sums come by a collective: for each, all ranks send to one, and a single link carries what p could.",
            "p - 1 steps of `pass_on`, in which every link is busy.",
        ),
        by_kind(
            "a step too many",
            "calls",
            "One message too many: p products need p - 1 sums that travel.",
            "No `pass_on` in the last step.",
        ),
        by_kind(
            "all tokens",
            "bytes",
            "More travels than the sums of other ranks' tokens.",
            "A message has the tokens of one rank: [T/p, D].",
        ),
        *common.LAST,
    ),
)
