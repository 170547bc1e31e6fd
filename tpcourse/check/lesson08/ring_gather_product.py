"""Exercise `ring_gather_product(x, weight, bias, tp)`: pieces travel round a ring, each under a product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, Fault
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson08 import common
from tpcourse.check.lesson08.common import BYTES, Inputs, by_kind, by_playing
from tpcourse.check.lesson08.trace import Moment, numbered
from tpcourse.check.misconceptions import by_playing_all
from tpcourse.check.spec import Exercise, nonzero

cases = common.tp_cases(rows=(4, 3, 2), D=(5, 4, 6), N=(3, 7, 5))


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Each rank's tokens, and its rows of weight and bias."""
    rows, D, N = case.sizes.values()
    return [
        {"x": nonzero(generator, rows, D), "weight": nonzero(generator, N, D), "bias": nonzero(generator, N)}
        for _ in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """All tokens times this rank's columns."""
    return _with_tokens(inputs, lambda rank, place: place)


def _with_tokens(inputs: Inputs, owner: Callable[[int, int], int]) -> list[Any]:
    """y of each rank, if place `place` of its rows has the tokens of rank owner(rank, place)."""
    p, xs = len(inputs), [given["x"] for given in inputs]
    return [
        np.concatenate([xs[owner(rank, place) % p] for place in range(p)]) @ given["weight"].T + given["bias"]
        for rank, given in enumerate(inputs)
    ]


def _biased(times: Callable[[int], int]) -> Callable[[Evidence], list[Any]]:
    """y with the bias added another number of times, which depends on p."""

    def way(evidence: Evidence) -> list[Any]:
        pairs = zip(evidence.expected, evidence.inputs, strict=True)
        return [row + (times(evidence.p) - 1) * given["bias"] for row, given in pairs]

    return way


def budget(case: Case, inputs: Inputs) -> Budget:
    """p - 1 messages of one piece, each under way while a product runs."""
    calls = {"send": case.p - 1, "recv": case.p - 1}
    rows, D, N = case.sizes.values()
    return common.rules(calls, (case.p - 1) * BYTES * rows * D, _order, work=case.p * rows * D * N)


def _order(evidence: Evidence) -> Fault | None:
    rows, D, N = evidence.case.sizes.values()
    for rank in range(evidence.p):
        found = numbered(evidence, rank, rows * D * N)
        if found and all(found[0][1].waited("recv")) and len(found[0][1].waited("recv")) == evidence.p - 1:
            return Fault("serial", f"on rank {rank} all pieces have come when the first product begins")
        for piece, moment in found:
            if piece < evidence.p - 1 and (fault := _step(rank, piece, moment)):
                return fault
    return None


def _step(rank: int, piece: int, moment: Moment) -> Fault | None:
    """When product `piece` begins, its message has begun, and has not been waited for."""
    what = f"on rank {rank} product {piece} begins"
    if len(moment.waited("send")) <= piece:
        return Fault("behind", f"{what} before the send of the piece that it multiplies")
    if moment.waited("recv")[piece]:
        return Fault("at once", f"{what} after waiting for message {piece}")
    return None


EXERCISE = Exercise(
    name="ring_gather_product",
    values="all tokens in rank order, times this rank's columns, plus its bias",
    communication="p - 1 messages, each begun before a product and waited for behind it",
    cases=cases,
    free=("rows", "D", "N"),
    make=make,
    expected=expected,
    budget=budget,
    third=common.hidden_line,
    probe="lesson08.rank_ring_gather_product",
    imports=common.SLOW,
    misconceptions=(
        *common.FIRST,
        by_playing(
            "turned",
            "The rows of y are in the wrong places: in step s of a ring that sends to the right, a rank has the tokens "
            "of rank r - s, not r + s. On two ranks both are the same.",
            "What comes from the left was the left one's a step ago: r - 1, then r - 2.",
            lambda evidence: _with_tokens(evidence.inputs, lambda rank, place: 2 * rank - place),
        ),
        by_playing(
            "order of arrival",
            "The rows of y are in the order in which they came here, and every rank has another order.",
            "Write product s to the place of rank (r - s) % p.",
            lambda evidence: _with_tokens(evidence.inputs, lambda rank, place: rank - place),
        ),
        by_playing(
            "own again",
            "In every step a rank sends its own tokens, so the left one's come again and again: right at 2 ranks only.",
            "Pass on what came in the step before.",
            lambda evidence: _with_tokens(evidence.inputs, lambda rank, place: rank if place == rank else rank - 1),
        ),
        by_playing_all(
            "one place off",
            "The rows of y are one place off: every rank's tokens are where those of the rank beside it belong.",
            "In step 0 a rank multiplies its own tokens, and their place is its own, r. Count from there.",
            lambda evidence: _with_tokens(evidence.inputs, lambda rank, place: place - 1),
            lambda evidence: _with_tokens(evidence.inputs, lambda rank, place: place + 1),
        ),
        by_playing(
            "no bias",
            "The bias is not in y: every row is the product alone.",
            "One device computes x W^T + bias: each row gets this rank's bias, once.",
            _biased(lambda p: 0),
        ),
        by_playing(
            "bias more than once",
            "The bias is in every row more than once.",
            "Each row is made by one product, and gets the bias there or at the end: not at both, and not per step.",
            _biased(lambda p: 2),
            _biased(lambda p: p),
            _biased(lambda p: p + 1),
        ),
        by_playing(
            "averaged",
            "y is p times too small: it was divided by p, and nothing is added up over ranks here that a mean could be "
            "taken of.",
            "Every row is one rank's tokens times the weight. Leave it as it is.",
            lambda evidence: [row / evidence.p for row in evidence.expected],
        ),
        by_kind(
            "serial in disguise",
            "serial",
            "All pieces go round first, and then comes the product: a gather by hand, serial in disguise.",
            "Multiply within the loop: a piece while the next one comes.",
        ),
        by_kind(
            "send behind the product",
            "behind",
            "The send waits for the product, though it needs nothing of it: this is the popular version.",
            "In each step: `pass_on` first, then the product, then wait.",
        ),
        by_kind(
            "waits at once",
            "at once",
            "The message is waited for before the product begins, so neither runs under the other.",
            "Wait behind the product: it needs the piece that came before, not the one that is coming.",
        ),
        by_kind(
            "collective",
            "operation",
            "The pieces come by a collective, all at once: no product can begin with the first of them.",
            "p - 1 steps of `pass_on`.",
        ),
        by_kind(
            "a step too many",
            "calls",
            "The last message brings back what this rank had at the start: p products need p - 1 messages.",
            "No `pass_on` in the last step.",
        ),
        by_kind("a step too many, by bytes", "bytes", "More travels than a rank lacks.", "p - 1 messages of x."),
        *common.LAST,
    ),
)
