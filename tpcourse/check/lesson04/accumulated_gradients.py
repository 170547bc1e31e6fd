"""Exercise `accumulated_gradients(model, xs, ys, group)`: k micro-batches, one average at the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson04.common import COMMON, SUM_FOR_MEAN, added, of_mean, rules, scaled
from tpcourse.check.lesson04.common import same_everywhere as everywhere
from tpcourse.check.lesson04.recipe import NUM_BYTES, NUM_WEIGHTS, Recipe, new_batch, new_weights
from tpcourse.check.misconceptions import Finding, Misconception, by_outputs
from tpcourse.check.spec import Exercise, group_sizes, one_group

Inputs = list[dict[str, Any]]
EXAMPLES = 2


def cases(world_size: int) -> list[Case]:
    """Another number of micro-batches in each group."""
    return [one_group(p, world_size, k=k) for p, k in zip(group_sizes(world_size), (3, 2, 5), strict=False)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Equal weights, k micro-batches for each rank."""
    weights, inputs = new_weights(generator), []
    for _ in range(case.p):
        parts = [new_batch(generator, EXAMPLES) for _ in range(case.sizes["k"])]
        inputs.append({"model": Recipe(weights), "xs": [b["x"] for b in parts], "ys": [b["y"] for b in parts]})
    return inputs


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The average over ranks and micro-batches."""
    return [_mean(inputs, slice(None))] * case.p


def budget(case: Case, inputs: Inputs) -> Budget:
    """Each gradient averaged once, whatever k is."""
    return Budget(judge=rules(num_calls=NUM_WEIGHTS, num_bytes=NUM_BYTES))


def _mean(inputs: Inputs, which: slice) -> list[np.ndarray]:
    rows = [
        of_mean({"model": given["model"], "x": x, "y": y})
        for given in inputs
        for x, y in zip(given["xs"][which], given["ys"][which], strict=True)
    ]
    return added(rows, 1 / len(rows))


def _own(evidence: Evidence) -> list[Any]:
    return [_mean([given], slice(None)) for given in evidence.inputs]


def _last(evidence: Evidence) -> list[Any]:
    return everywhere(evidence, _mean(evidence.inputs, slice(-1, None)))


def _last_over_k(evidence: Evidence) -> list[Any]:
    return everywhere(evidence, added([_last(evidence)[0]], 1 / evidence.case.sizes["k"]))


def _every_step(finding: Finding) -> bool:
    """k times the bytes, or k times the calls."""
    return finding.evidence.right and finding.fault_kind in ("bytes", "calls")


EXERCISE = Exercise(
    name="accumulated_gradients",
    values="every rank returns the gradients of the mean over all ranks' micro-batches",
    communication="all_reduce only, each gradient once, not once for each micro-batch",
    cases=cases,
    free=("k",),
    make=make,
    expected=expected,
    budget=budget,
    misconceptions=(
        *COMMON,
        Misconception(
            "every micro-step",
            _every_step,
            "The values are right, and ranks communicate in every micro-step: k times the bytes for one average.",
            "Let backward add up in `w.grad` over the whole loop, and average behind it.",
        ),
        by_outputs(
            "not divided by k",
            scaled(lambda e: e.case.sizes["k"]),
            "The result is k times too large: backward adds micro-batches up, and the loss is their mean.",
            "Divide each micro-batch's loss by `len(xs)`.",
        ),
        by_outputs(
            "only the last",
            _last,
            "Only the last micro-batch is in the result: gradients were cleared between micro-steps.",
            "Clear gradients before the first micro-step only: backward adds to what `w.grad` holds.",
        ),
        by_outputs(
            "only the last, over k",
            _last_over_k,
            "Only the last micro-batch counts, divided by k: the others were cleared away.",
            "Clear gradients before the first micro-step only: backward adds to what `w.grad` holds.",
        ),
        by_outputs(
            "not averaged",
            _own,
            "Each rank returns the mean of its own micro-batches: after the loop nothing was averaged over the ranks.",
            "One all-reduce of each `w.grad` behind the loop, divided by p.",
        ),
        SUM_FOR_MEAN,
    ),
)
