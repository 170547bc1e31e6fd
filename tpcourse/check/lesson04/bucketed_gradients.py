"""Exercise `bucketed_gradients(model, x, y, bucket_bytes, group)`: all gradients in ceil(bytes / bucket) calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, Fault
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson04.common import (
    COMMON,
    NOT_AVERAGED,
    SUM_FOR_MEAN,
    added,
    calls_of,
    of_mean,
    rules,
    tied_again,
)
from tpcourse.check.lesson04.recipe import NUM_BYTES, NUM_WEIGHTS, Recipe, new_batch, new_weights
from tpcourse.check.misconceptions import Finding, Misconception, by_fault
from tpcourse.check.spec import Exercise, group_sizes, one_group

Inputs = list[dict[str, Any]]
EXAMPLES = 3


def cases(world_size: int) -> list[Case]:
    """Buckets that the bytes fill and buckets that they do not; then one that holds everything."""
    sizes = group_sizes(world_size)
    found = [
        one_group(p, world_size, bucket_bytes=size, edge=NUM_BYTES % size == 0)
        for p, size in zip(sizes, (168, 200, 176), strict=False)
    ]
    return [*found, one_group(sizes[-1], world_size, bucket_bytes=4096, edge=True)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Equal weights, other examples."""
    weights = new_weights(generator)
    return [
        {"model": Recipe(weights), **new_batch(generator, EXAMPLES), "bucket_bytes": case.sizes["bucket_bytes"]}
        for _ in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The average, on every rank."""
    return [added(map(of_mean, inputs), 1 / case.p)] * case.p


def budget(case: Case, inputs: Inputs) -> Budget:
    """ceil(n / bucket) all-reduces of at most a bucket, n bytes in all."""
    calls = -(-NUM_BYTES // case.sizes["bucket_bytes"])
    return Budget(judge=rules(_bucket_rule, num_calls=calls, num_bytes=NUM_BYTES))


def _bucket_rule(evidence: Evidence) -> Fault | None:
    most = evidence.case.sizes["bucket_bytes"]
    for rank, outcome in enumerate(evidence.outcomes):
        largest = max((event.numel * 8 for event in calls_of(outcome)), default=0)
        if largest > most:
            return Fault("bucket", f"rank {rank} puts {largest} bytes into one call, and a bucket holds {most}")
    return None


def _a_call_each(finding: Finding) -> bool:
    return finding.fault_kind == "calls" and all(
        len(calls_of(outcome)) == NUM_WEIGHTS for outcome in finding.evidence.outcomes
    )


EXERCISE = Exercise(
    name="bucketed_gradients",
    values="every rank returns the average of all ranks' gradients, each in its parameter's shape",
    communication="ceil(n / bucket) all_reduce calls, none above a bucket; n bytes, the tied matrix once",
    cases=cases,
    free=("bucket_bytes",),
    free_step=8,
    make=make,
    expected=expected,
    budget=budget,
    misconceptions=(
        *COMMON,
        Misconception(
            "tied twice",
            tied_again,
            "The tied matrix travels twice, once for each layer that uses it: it is one parameter with one gradient.",
            "`model.parameters()` names a tied parameter once; a walk over the layers, or `state_dict()`, twice.",
        ),
        Misconception(
            "a call each",
            _a_call_each,
            "The values are right, and every parameter has a call of its own: nothing was put together.",
            "Join all gradients with `torch.cat`, and cut the flat array with `split(bucket_bytes // 8)`.",
        ),
        by_fault(
            "too many calls",
            "calls",
            "The values are right, in more calls than needed: buckets leave room that the next parameter could fill.",
            "Cut the flat array every bucket_bytes, through a parameter if need be.",
        ),
        by_fault(
            "bucket too large",
            "bucket",
            "Few calls, but one carries more than a bucket: with one call for everything, nothing can leave early.",
            "`flat.split(bucket_bytes // flat.element_size())` cuts views of at most a bucket.",
        ),
        SUM_FOR_MEAN,
        NOT_AVERAGED,
    ),
)
