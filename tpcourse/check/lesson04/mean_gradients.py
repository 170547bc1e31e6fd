"""Exercise `mean_gradients(model, x, y, group)`: equal weights first, then the average of all ranks' gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson04.common import COMMON, NOT_AVERAGED, SUM_FOR_MEAN, added, of_mean, own, rules
from tpcourse.check.lesson04.common import same_everywhere as everywhere
from tpcourse.check.lesson04.recipe import NUM_BYTES, NUM_WEIGHTS, Recipe, new_batch, new_weights
from tpcourse.check.misconceptions import by_outputs
from tpcourse.check.spec import Exercise, group_sizes, one_group

Inputs = list[dict[str, Any]]


def cases(world_size: int) -> list[Case]:
    """As many examples on each rank, another number in each group."""
    return [one_group(p, world_size, examples=n) for p, n in zip(group_sizes(world_size), (3, 4, 2), strict=False)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Every rank starts from weights of its own."""
    return [
        {"model": Recipe(new_weights(generator)), **new_batch(generator, case.sizes["examples"])}
        for _ in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The gradients of the mean over all examples, at the weights of the group's first rank."""
    return [_at(inputs, [inputs[0]["model"].weights] * case.p)] * case.p


def budget(case: Case, inputs: Inputs) -> Budget:
    """The weights once from the first rank, the gradients once averaged."""
    num_bytes = {"num_bytes": NUM_BYTES, "given": NUM_BYTES}
    return Budget(judge=rules(ops=("broadcast", "all_reduce"), num_calls=2 * NUM_WEIGHTS, **num_bytes))


def _at(inputs: Inputs, weights: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """The average of the ranks' gradients, each at these weights."""
    return added([of_mean(given, at) for given, at in zip(inputs, weights, strict=True)], 1 / len(inputs))


def _weights(evidence: Evidence) -> list[dict[str, np.ndarray]]:
    return [given["model"].weights for given in evidence.inputs]


def _averaged_weights(evidence: Evidence) -> list[Any]:
    every = _weights(evidence)
    mean = {name: np.mean([weights[name] for weights in every], axis=0) for name in every[0]}
    return everywhere(evidence, _at(evidence.inputs, [mean] * evidence.p))


def _first_weights_not_averaged(evidence: Evidence) -> list[Any]:
    return [of_mean(given, _weights(evidence)[0]) for given in evidence.inputs]


EXERCISE = Exercise(
    name="mean_gradients",
    values="every rank returns the gradients of one device that has the whole batch and the first rank's weights",
    communication="broadcast and all_reduce, each parameter once in each",
    cases=cases,
    free=("examples",),
    make=make,
    expected=expected,
    budget=budget,
    misconceptions=(
        *COMMON,
        by_outputs(
            "different weights",
            lambda e: everywhere(e, _at(e.inputs, _weights(e))),
            "The ranks start from different weights: each gradient was taken at another point, and their average is no "
            "gradient of anything.",
            "Before the forward pass, `dist.broadcast` each parameter from the group's first rank.",
        ),
        by_outputs(
            "averaged weights",
            _averaged_weights,
            "The weights were averaged to make them equal; the task is to begin with those of the group's first rank.",
            "`dist.broadcast(w.data, src=dist.get_global_rank(group, 0), group=group)`.",
        ),
        by_outputs(
            "different weights, not averaged",
            own,
            "Each rank returns its own gradients at its own weights: nothing was shared that counts.",
            "Weights from the first rank before backward, the average of all gradients after it.",
        ),
        by_outputs(
            "first weights, not averaged",
            _first_weights_not_averaged,
            NOT_AVERAGED.sentence,
            NOT_AVERAGED.hint,
        ),
        SUM_FOR_MEAN,
    ),
)
