"""Exercise `block_gradients(x, block, dy, group)`: the bug hunt, gradients of whole weights that are partial sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.compare import Named
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson05.common import RETURNED
from tpcourse.check.lesson06.common import FIRST, OVER_BUDGET, calls_of, rules
from tpcourse.check.lesson06.one_device import Gradients, own_gradients
from tpcourse.check.lesson06.recipe import SPLIT, WHOLE, D, Made, Shared, new_parts
from tpcourse.check.misconceptions import Finding, Misconception, by_outputs
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

Inputs = list[dict[str, Any]]
SIZES = {2: (3, 8), 3: (2, 12), 4: (3, 8)}
NORMS, BIASES = ("norm1.scale", "norm2.scale"), ("attention_bias", "mlp_bias")
PARTIAL = (*NORMS, *BIASES)
"""Whole on every rank, with a gradient from this rank's tokens only."""
NUM_BYTES = 8 * D * len(PARTIAL)


class Finished(Named):
    """The right gradients; `own` are a rank's when backward has ended and nothing was repaired."""

    def __init__(self, right: Gradients, own: Gradients) -> None:
        super().__init__(right)
        self.own = own


def cases(world_size: int) -> list[Case]:
    """p divides the tokens."""
    return [one_group(p, world_size, B=SIZES[p][0], T=SIZES[p][1], D=D) for p in group_sizes(world_size)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """A rank's tokens of x, its parts of the block; dy of the gathered output is the same everywhere."""
    batch, tokens = case.sizes["B"], case.sizes["T"]
    dy = Shared(nonzero(generator, batch, tokens, D))
    return [
        {"x": nonzero(generator, batch, tokens // case.p, D), "block": Made("Block", part), "dy": dy}
        for part in new_parts(generator, case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """One device's gradients: of the whole weights all of it, of the others this rank's part."""
    parts = [given["block"].weights for given in inputs]
    own = own_gradients(parts, [given["x"] for given in inputs], inputs[0]["dy"].array)
    return [Finished(right, mine) for right, mine in zip(_summed(own, PARTIAL), own, strict=True)]


def budget(case: Case, inputs: Inputs) -> Budget:
    """What the block calls, and one all-reduce of the four partial gradients."""
    n = case.p * inputs[0]["x"].nbytes
    return Budget(judge=rules({"all_gather": (5, n), "reduce_scatter": (4, n), "all_reduce": (1, NUM_BYTES)}))


def _summed(own: list[Gradients], names: Iterable[str], factor: float = 1) -> list[Gradients]:
    """Some of the gradients summed over the ranks and multiplied by a factor."""
    chosen = {f"d{name}" for name in names}
    total = {name: factor * np.sum([gradients[name] for gradients in own], axis=0) for name in chosen}
    return [{name: total.get(name, gradient) for name, gradient in gradients.items()} for gradients in own]


def _wrong(choose: Callable[[Evidence], tuple[Iterable[str], float]]) -> Callable[[Evidence], list[Any]]:
    """The results if these gradients are summed, with a factor."""

    def results(evidence: Evidence) -> list[Any]:
        own = [row.own for row in evidence.expected]
        return [list(row.values()) for row in _summed(own, *choose(evidence))]

    return results


def _sums(*names: str) -> Callable[[Evidence], list[Any]]:
    return _wrong(lambda evidence: (names, 1))


def _averages(evidence: Evidence) -> list[Any]:
    return _wrong(lambda e: (PARTIAL, 1 / e.p))(evidence)


def _one_dim(evidence: Evidence) -> list[Any]:
    names = [name for name, shape in (WHOLE | SPLIT).items() if len(shape) == 1]
    return _sums(*names)(evidence)


def _forgotten(name: str) -> Misconception:
    """Three of the four are repaired."""
    others = [other for other in PARTIAL if other != name]
    return by_outputs(
        f"{name} forgotten",
        _sums(*others),
        f"One gradient is still partial, that of `{name}`; the other three are repaired.",
        "This weight too meets only this rank's tokens: look for it in `block_and_norm`.",
    )


def _a_call_each(finding: Finding) -> bool:
    return finding.evidence.right and finding.fault_kind == "calls" and calls_of(finding, "all_reduce") > 1


LIST_THEM = "Which weights are whole on every rank **and** meet only this rank's tokens? Sum those, and no others."
EXERCISE = Exercise(
    name="block_gradients",
    values="every gradient is one device's, or this rank's part of it",
    communication="beside the block's own calls one all_reduce, of the partial gradients together",
    cases=cases,
    free=("B", "T"),
    make=make,
    expected=expected,
    budget=budget,
    probe="lesson06.rank_block_gradients",
    misconceptions=(
        *FIRST,
        Misconception(
            "not a list",
            lambda f: RETURNED in f.error,
            "Every weight has a gradient, and a list with all of them is asked for: what came back is something else.",
            "`return [w.grad for w in block.parameters()]`, as in the step above.",
        ),
        Misconception(
            "sum lost",
            lambda f: f.evidence.would_give(_sums()(f.evidence)) and calls_of(f, "all_reduce") > 0,
            "The gradients are as partial as before: the sum was made in another tensor, and never got back into them.",
            "What comes out of the all_reduce has to be written into each `w.grad`, with `copy_`: a loop that gives "
            "its own names another tensor changes no gradient.",
        ),
        by_outputs(
            "partial",
            _sums(),
            "The gradients of norm scales and row biases are partial: each rank has what its own tokens give, and "
            "nobody adds it up. Weights that should be equal drift apart.",
            LIST_THEM,
        ),
        by_outputs(
            "norms only",
            _sums(*NORMS),
            "The norm scales are repaired and the row biases are not: they too meet only this rank's tokens.",
            "`attention_bias` and `mlp_bias` are added behind the scatter-sum, where a rank holds T/p tokens.",
        ),
        by_outputs(
            "biases only",
            _sums(*BIASES),
            "The row biases are repaired, and the gradients of norm1 and norm2 are still partial.",
            "A norm's scale is multiplied with this rank's tokens, and collects their gradient only.",
        ),
        *(_forgotten(name) for name in PARTIAL),
        by_outputs(
            "last norm too",
            _sums(*PARTIAL, "norm3.scale"),
            "norm3's gradient is p times too large: behind the gather every rank sees all tokens, so it was whole.",
            LIST_THEM,
        ),
        by_outputs(
            "every vector",
            _one_dim,
            "All vectors are summed, also the biases of qkv and up: those are this rank's rows, and another rank's "
            "are other numbers.",
            LIST_THEM,
        ),
        by_outputs(
            "everything",
            _sums(*WHOLE, *SPLIT),
            "All gradients are summed, as data parallelism does. A split weight's gradient is complete where it is; "
            "the sum adds rows that have nothing to do with each other.",
            LIST_THEM,
        ),
        by_outputs(
            "average",
            _averages,
            "The partial gradients are averaged: p times too small. The ranks have different tokens of one loss, so "
            "the gradient is the sum.",
            "No division: dy is already that of the whole loss.",
        ),
        Misconception(
            "a call each",
            _a_call_each,
            "The gradients are right, and each travels alone: a call per weight and layer, of a few numbers.",
            "`torch.cat` the four, one `dist.all_reduce`, and `split` the sum.",
        ),
        OVER_BUDGET,
    ),
)
