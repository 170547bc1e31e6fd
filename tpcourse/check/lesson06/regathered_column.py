"""Exercise `regathered_column(x, weight, bias, group)`: keeps this rank's tokens, gathers again in backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.compare import Named
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson06.common import AVERAGED, FIRST, OVER_BUDGET, by_result, double_bytes, no_backward, rules
from tpcourse.check.lesson06.recipe import D, F, joined
from tpcourse.check.lesson07.common import SLOW
from tpcourse.check.misconceptions import Finding, Misconception
from tpcourse.check.report import FAILED, PASSED, Line
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

Inputs = list[dict[str, Any]]
AXIS = "bytes held"
Y, DX, DWEIGHT, DBIAS = range(4)
SIZES = {2: (3, 8), 3: (2, 12), 4: (3, 8)}


def cases(world_size: int) -> list[Case]:
    """p divides the tokens."""
    return [one_group(p, world_size, B=SIZES[p][0], T=SIZES[p][1], D=D) for p in group_sizes(world_size)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """A rank's tokens of x, its rows of weight and bias, and dy of all tokens for them."""
    batch, tokens = case.sizes["B"], case.sizes["T"]
    return [
        {
            "x": nonzero(generator, batch, tokens // case.p, D),
            "weight": nonzero(generator, F, D),
            "bias": nonzero(generator, F),
            "dy": nonzero(generator, batch, tokens, F),
        }
        for _ in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """Exact formulas of a product: y = x W^T + b for all tokens, and its gradients."""
    x = joined([given["x"] for given in inputs])
    dxs = np.split(sum(given["dy"] @ given["weight"] for given in inputs), case.p, axis=1)
    return [
        Named(
            {
                "y": x @ given["weight"].T + given["bias"],
                "dx": dx,
                "dweight": _dweight(given["dy"], x),
                "dbias": given["dy"].sum((0, 1)),
            }
        )
        for given, dx in zip(inputs, dxs, strict=True)
    ]


def budget(case: Case, inputs: Inputs) -> Budget:
    """One all-gather forward, one more and a reduce-scatter backward."""
    n = case.p * inputs[0]["x"].nbytes
    return Budget(judge=rules({"all_gather": (2, n), "reduce_scatter": (1, n)}))


def bytes_held(cases: list[Evidence]) -> Line:
    """What is kept between forward and backward, beside y: at most this rank's tokens."""
    for evidence in reversed(cases):
        most = evidence.inputs[0]["x"].nbytes
        kept = [outcome.facts.get("kept", 0) for outcome in evidence.outcomes]
        if max(kept) > most:
            text = f"rank {kept.index(max(kept))} keeps {max(kept):,} bytes for backward, the budget is {most:,}"
            return Line(AXIS, FAILED, f"{text} (at {evidence.case})")
    return Line(AXIS, PASSED, "this rank's tokens of x, and nothing that was gathered")


def _dweight(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.einsum("btf,btd->fd", dy, x)


def _pieces(evidence: Evidence, name: str) -> list[np.ndarray]:
    """Piece r of rank r's array."""
    return [np.split(given[name], evidence.p, axis=1)[rank] for rank, given in enumerate(evidence.inputs)]


def _own_dx(evidence: Evidence) -> list[np.ndarray]:
    pieces = _pieces(evidence, "dy")
    return [dy @ given["weight"] for dy, given in zip(pieces, evidence.inputs, strict=True)]


def _own_dweight(evidence: Evidence) -> list[np.ndarray]:
    pieces = _pieces(evidence, "dy")
    return [_dweight(dy, given["x"]) for dy, given in zip(pieces, evidence.inputs, strict=True)]


def _summed_dweight(evidence: Evidence) -> list[np.ndarray]:
    return [np.sum([expected[DWEIGHT] for expected in evidence.expected], axis=0)] * evidence.p


def _missing(evidence: Evidence) -> set[int]:
    """Which results are missing on every rank."""
    outputs = [output for output in evidence.outputs if isinstance(output, list)] if evidence.finished else []
    sets = [{index for index, result in enumerate(output) if result is None} for output in outputs]
    return set.intersection(*sets) if len(sets) == evidence.p else set()


def _too_much(finding: Finding, name: str) -> bool:
    """Whether a count of bytes is above this rank's tokens."""
    most = finding.evidence.inputs[0]["x"].nbytes
    return finding.fault_kind == AXIS and any(o.facts.get(name, 0) > most for o in finding.evidence.outcomes)


EXERCISE = Exercise(
    name="regathered_column",
    values="y, dx, dweight and dbias equal one device's",
    communication="1 all_gather forward; 1 all_gather and 1 reduce_scatter backward",
    cases=cases,
    free=("B", "T"),
    make=make,
    expected=expected,
    budget=budget,
    third=bytes_held,
    probe="lesson06.rank_regathered_column",
    imports=SLOW,
    misconceptions=(
        *FIRST,
        by_result(
            "slices",
            DX,
            _own_dx,
            "dx is short by the other ranks' share: backward takes its piece of dy W, and does not add up what all "
            "ranks' columns send back.",
            "A reduce-scatter of dy W along the tokens, [B, T, D] -> [B, T/p, D].",
        ),
        by_result(
            "own tokens",
            DWEIGHT,
            _own_dweight,
            "dweight knows only this rank's tokens: backward used the piece where it needs all of x.",
            "Gather x again before the product dy^T x: y was made of all T tokens.",
        ),
        by_result(
            "weights summed",
            DWEIGHT,
            _summed_dweight,
            "dweight is summed over the ranks, and their rows are different rows: the gradient of a split weight "
            "is complete where it is.",
            "Only dx is a sum over ranks here.",
        ),
        double_bytes(
            "Right, at double the bytes: dx is summed in full on every rank, which keeps one piece of it.",
            "One reduce-scatter sums and cuts at once.",
        ),
        Misconception(
            "keeps the gathered x",
            lambda f: _too_much(f, "saved"),
            "The gathered x is kept for backward: p times the bytes of this rank's tokens, in every layer.",
            "`ctx.save_for_backward(x, weight)` with the piece, and a second gather in backward.",
        ),
        Misconception(
            "hidden on ctx",
            lambda f: _too_much(f, "hidden"),
            "The gathered x was not saved and is still there: an attribute of ctx keeps a tensor as well as "
            "`save_for_backward` does.",
            "Let the gathered x be a local name of forward, which goes when forward returns.",
        ),
        Misconception(
            "kept by a name",
            lambda f: _too_much(f, "named"),
            "The gathered x is still there between forward and backward: a name outside of forward keeps it, and as "
            "long as it does, its memory is taken.",
            "No `global`, no list or class attribute for it: gather again in backward, and use what comes.",
        ),
        by_result(
            "averaged",
            DX,
            lambda e: [expected[DX] / e.p for expected in e.expected],
            "dx is p times too small: it was averaged, as in data parallel. Here ranks hold parts of one sum.",
            AVERAGED,
        ),
        Misconception(
            "returned None",
            lambda f: _missing(f.evidence) in ({DWEIGHT}, {DBIAS}, {DWEIGHT, DBIAS}),
            "dx arrives, and dweight or dbias does not: `backward` returned None for it, or it has no part in y.",
            "`backward` returns one gradient for each argument of `forward` after `ctx`; None for the group only.",
        ),
        no_backward(
            Y,
            "y is right and gradients are missing: they end at a collective of torch.distributed, which has no "
            "backward.",
            "Gather inside the `forward` of a `torch.autograd.Function`.",
        ),
        OVER_BUDGET,
    ),
)
