"""Exercise `sequence_block(x, block, group)`: a whole block with norms, biases and residual on this rank's tokens."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.compare import Named, agree
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson05.common import LEFT_OUT
from tpcourse.check.lesson06.common import (
    FIRST,
    OVER_BUDGET,
    by_result,
    calls_of,
    double_bytes,
    gives,
    is_right,
    no_backward,
    result_of,
    rules,
)
from tpcourse.check.lesson06.one_device import pieces_through_block
from tpcourse.check.lesson06.recipe import D, Made, new_parts
from tpcourse.check.misconceptions import Finding, Misconception
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

Inputs = list[dict[str, Any]]
Y, DX = range(2)
BIASES = ("attention_bias", "mlp_bias")
SIZES = {2: (3, 8), 3: (2, 12), 4: (3, 8)}


def cases(world_size: int) -> list[Case]:
    """p divides the tokens."""
    return [one_group(p, world_size, B=SIZES[p][0], T=SIZES[p][1], D=D) for p in group_sizes(world_size)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """A rank's tokens of x and dy, its head and its hidden units; norms and row biases are the same everywhere."""
    shape = (case.sizes["B"], case.sizes["T"] // case.p, D)
    parts = new_parts(generator, case.p)
    return [
        {"x": nonzero(generator, *shape), "block": Made("Block", part), "dy": nonzero(generator, *shape)}
        for part in parts
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """This rank's tokens of y and dx, the gradients of its parts, and what its tokens give to the others."""
    return [Named(results) for results in _through(inputs)]


def budget(case: Case, inputs: Inputs) -> Budget:
    """Two all-gathers and two reduce-scatters each way: the bytes of four all-reduces."""
    n = case.p * inputs[0]["x"].nbytes
    return Budget(judge=rules({"all_gather": (4, n), "reduce_scatter": (4, n)}))


def _through(inputs: Inputs, **factors: float) -> list[dict[str, np.ndarray]]:
    """All results of all ranks, with some weights multiplied by a factor."""
    return _with_factors(inputs, [factors] * len(inputs))


def _with_factors(inputs: Inputs, factors: list[dict[str, float]]) -> list[dict[str, np.ndarray]]:
    """As `_through`, with each rank's own factors."""
    parts = [dict(given["block"].weights) for given in inputs]
    for part, own in zip(parts, factors, strict=True):
        part.update({name: factor * part[name] for name, factor in own.items()})
    return pieces_through_block(parts, [given["x"] for given in inputs], [given["dy"] for given in inputs])


def _bias_before_sum(evidence: Evidence) -> list[np.ndarray]:
    found = _through(evidence.inputs, attention_bias=evidence.p, mlp_bias=evidence.p)
    return [results["y"] for results in found]


def _bias_on_one(evidence: Evidence) -> bool:
    """y is that of the first rank alone adding one of the biases, or both; or of the last rank."""
    found = False
    for owner, names in product((0, evidence.p - 1), (BIASES[:1], BIASES[1:], BIASES)):
        factors = [{} if rank == owner else dict.fromkeys(names, 0.0) for rank in range(evidence.p)]
        results = _with_factors(evidence.inputs, factors)
        found = found or gives(evidence, Y, [own["y"] for own in results])
    return found


def _bias_in_sum_once(evidence: Evidence) -> bool:
    """y is right, and of a bias one rank has the gradient of all tokens, the others none, or zero."""
    return is_right(evidence, Y) and any(_one_has_all(evidence, name) for name in BIASES)


def _one_has_all(evidence: Evidence, name: str) -> bool:
    index = evidence.expected[0].names.index(f"d{name}")
    total = np.sum([row[index] for row in evidence.expected], axis=0)
    got = [d for d in result_of(evidence, index) if d is not None and np.any(d)]
    return len(got) == 1 and agree(got[0], total)


def _bias_divided(evidence: Evidence) -> bool:
    """y is right, and each rank's bias has a share of every token's gradient."""
    names = list(evidence.expected[0].names)
    index = names.index("dmlp_bias")
    mean = np.mean([row[index] for row in evidence.expected], axis=0)
    return is_right(evidence, Y) and gives(evidence, index, [mean] * evidence.p)


def _saw(finding: Finding, name: str) -> set[int]:
    return {outcome.facts.get(name, 0) for outcome in finding.evidence.outcomes}


def _norm_on_all(finding: Finding) -> bool:
    return finding.evidence.finished and _saw(finding, "norm") == {finding.evidence.case.sizes["T"]}


def _attention_on_own(finding: Finding) -> bool:
    own = finding.evidence.case.sizes["T"] // finding.evidence.p
    return _saw(finding, "attention") == {own}


def _slices_backward(finding: Finding) -> bool:
    """Forward is right, and backward adds nothing up."""
    evidence = finding.evidence
    return is_right(evidence, Y) and not is_right(evidence, DX) and calls_of(finding, "reduce_scatter") <= 2


EXERCISE = Exercise(
    name="sequence_block",
    values="y, dx and every gradient equal one device's; norms and row biases get the share of this rank's tokens",
    communication="2 all_gathers and 2 reduce_scatters forward, the same backward: the bytes of 4 all-reduces",
    cases=cases,
    free=("B", "T"),
    make=make,
    expected=expected,
    budget=budget,
    probe="lesson06.rank_sequence_block",
    misconceptions=(
        *FIRST,
        Misconception(
            "attention on its own tokens",
            _attention_on_own,
            "Attention sees only this rank's tokens: a token attends to none of those on other ranks.",
            "Gather behind the norm, along dim 1: the head of this rank needs all T tokens.",
        ),
        double_bytes(
            "Right, at double the bytes: the sum goes to every rank in full, and each throws away all but its tokens.",
            "`scatter_sum_gather(h, group=group, dim=1)` brings a rank the sum of its own tokens only.",
        ),
        Misconception(
            "norm on all tokens",
            _norm_on_all,
            "The norm runs on all T tokens on every rank: work done p times, and p times the activations to keep.",
            "Norm first, on this rank's tokens; gather what comes out of it.",
        ),
        by_result(
            "bias before the sum",
            Y,
            _bias_before_sum,
            "y is off by (p-1) times a bias: every rank adds it before the sum.",
            "The bias belongs behind the scatter-sum: there each token gets it once.",
        ),
        Misconception(
            "bias on one rank",
            lambda f: _bias_on_one(f.evidence),
            "A bias is added on some ranks and not on others: the tokens there go without it.",
            "Behind the scatter-sum every rank has tokens of its own, and each of them gets both biases.",
        ),
        Misconception(
            "bias divided by p",
            lambda f: _bias_divided(f.evidence),
            "y is right, and each bias gets 1/p of all tokens' gradient: it was divided by p before the sum.",
            "Add the whole bias behind the scatter-sum, to this rank's tokens.",
        ),
        Misconception(
            "bias in the sum once",
            lambda f: _bias_in_sum_once(f.evidence),
            "y is right, and a bias gets all tokens' gradient on one rank and none on the others: it is added on that "
            "rank alone, before the sum.",
            "Behind the scatter-sum every rank has tokens of its own: added there, its bias gets their gradient.",
        ),
        LEFT_OUT,
        no_backward(
            Y,
            "y is right and gradients are missing: they end at a collective of torch.distributed, which has no "
            "backward.",
            "Take pairs of `tpcourse.conjugates`: each brings its own backward.",
        ),
        Misconception(
            "slices backward",
            _slices_backward,
            "Forward is right; backward slices where it has to add: each rank's head and hidden units send back a "
            "part of dx, and the parts of the other ranks are dropped.",
            "The pair that gathers in front of split work is `gather_scatter_sum`.",
        ),
        OVER_BUDGET,
    ),
)
