"""Exercise `weighted_gradients(model, x, y, group)`: shares of any length, every example counts the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson04.common import COMMON, added, none_left, of_mean, of_sum, rules, scaled
from tpcourse.check.lesson04.common import same_everywhere as everywhere
from tpcourse.check.lesson04.recipe import NUM_BYTES, NUM_WEIGHTS, Recipe, new_batch, new_weights
from tpcourse.check.misconceptions import Finding, Misconception, by_outputs
from tpcourse.check.spec import Exercise, group_sizes, one_group

Inputs = list[dict[str, Any]]
SHARES = {2: (1, 4), 3: (2, 1, 6), 4: (5, 1, 3, 2)}


def cases(world_size: int) -> list[Case]:
    """Every share of another length; then, in the smallest group, a rank with no example."""
    found = [one_group(p, world_size, examples=sum(SHARES[p])) for p in group_sizes(world_size)]
    return [*found, one_group(2, world_size, examples=3, edge=True)]


def shares(case: Case) -> tuple[int, ...]:
    """How many examples each rank has."""
    if case.edge:
        return case.sizes["examples"], 0
    more = case.sizes["examples"] - sum(SHARES[case.p])
    return tuple(share + more // case.p for share in SHARES[case.p])


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Equal weights, shares of different lengths."""
    weights = new_weights(generator)
    return [{"model": Recipe(weights), **new_batch(generator, count)} for count in shares(case)]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The gradients of the mean over all examples."""
    return [added(map(of_sum, inputs), 1 / _num_targets(inputs))] * case.p


def budget(case: Case, inputs: Inputs) -> Budget:
    """Each gradient once, and one number: how many examples there are."""
    return Budget(judge=rules(num_calls=NUM_WEIGHTS + 1, num_bytes=NUM_BYTES + 8))


def _num_targets(inputs: Inputs) -> int:
    return sum(given["y"].size for given in inputs)


def _mean_of_means(evidence: Evidence) -> list[Any]:
    return everywhere(evidence, added(map(of_mean, evidence.inputs), 1 / evidence.p))


def _weighted_mean_of_means(evidence: Evidence) -> list[Any]:
    """Means weighted by count, and averaged by p although the weights add up to 1 already."""
    return everywhere(evidence, added([evidence.expected[0]], 1 / evidence.p))


def _skipped(finding: Finding) -> bool:
    """A rank with no example made fewer calls than the others."""
    counts = [given["y"].size for given in finding.evidence.inputs]
    num_calls = [len(outcome.events) for outcome in finding.evidence.outcomes]
    return 0 in counts and not finding.evidence.finished and num_calls[counts.index(0)] < max(num_calls)


EXERCISE = Exercise(
    name="weighted_gradients",
    values="every rank returns the gradients of the mean over all examples, also where a rank has none",
    communication="all_reduce only: each gradient once, and one number for the count",
    cases=cases,
    free=("examples",),
    make=make,
    expected=expected,
    budget=budget,
    misconceptions=(
        *COMMON,
        by_outputs(
            "mean of means",
            _mean_of_means,
            "This is the average of averages: an example on a rank with few of them counts more than one on a rank "
            "with many.",
            "Let each rank take the sum of its losses; divide by the number of targets on all ranks.",
        ),
        by_outputs(
            "divided by p as well",
            _weighted_mean_of_means,
            "The result is p times too small: sums were divided by the count of all ranks, and then by p as well.",
            "A sum over ranks divided by N is a mean already: no second division.",
        ),
        by_outputs(
            "sum",
            lambda e: everywhere(e, added(map(of_sum, e.inputs))),
            "This is the gradient of the sum of all losses: it was not divided by the number of targets.",
            "Divide by N, the sum over ranks of `y.numel()`.",
        ),
        by_outputs(
            "examples for targets",
            scaled(lambda e: 3.0),
            "The result is 3 times too large: it was divided by the number of examples, and each has 3 targets.",
            "The mean runs over all elements of y: count `y.numel()`, not `len(y)`.",
        ),
        none_left(
            "no gradient",
            "`w.grad` is None where no backward ran: a rank without examples has nothing to give.",
            "Send zeros; or let it call backward on its empty share, as a sum over nothing gives zeros.",
        ),
        Misconception(
            "skips",
            _skipped,
            "The rank without examples leaves out its calls, and the others wait for it.",
            "Every rank makes the same calls, also with nothing to give: its gradients are zeros.",
        ),
    ),
)
