"""Exercise `overlapped_gradients(model, x, y, bucket_bytes, group)`: buckets leave while backward runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, Fault
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson04.common import (
    COMMON,
    MARK,
    NOT_AVERAGED,
    SUM_FOR_MEAN,
    added,
    calls_of,
    none_left,
    of_mean,
    rules,
    tied_again,
)
from tpcourse.check.lesson04.recipe import NUM_BYTES, SHAPES, Recipe, new_batch, new_weights
from tpcourse.check.misconceptions import Finding, Misconception, by_fault, by_outputs
from tpcourse.check.spec import Exercise, group_sizes, one_group

Inputs = list[dict[str, Any]]
EXAMPLES = 3
BIAS_BYTES = 32


def cases(world_size: int) -> list[Case]:
    """Another size of bucket in each group; each lets at least one bucket leave before the first layer's turn. Then one
    that parts left.bias from right.bias: their buckets fill in another order on every other rank.
    """
    found = zip(group_sizes(world_size), (120, 160, 200), strict=False)
    apart = one_group(2, world_size, bucket_bytes=BIAS_BYTES, edge=True)
    return [*(one_group(p, world_size, bucket_bytes=n) for p, n in found), apart]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Equal weights; every other rank runs its two branches in the other order."""
    weights = new_weights(generator)
    return [
        {
            "model": Recipe(weights, swaps=bool(rank % 2), members=case.members),
            **new_batch(generator, EXAMPLES),
            "bucket_bytes": case.sizes["bucket_bytes"],
        }
        for rank in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The average, on every rank."""
    return [added(map(of_mean, inputs), 1 / case.p)] * case.p


def budget(case: Case, inputs: Inputs) -> Budget:
    """ceil(n / bucket) all-reduces, the first of them asynchronous and before backward ends; waits for all, no hook
    left.
    """
    calls = -(-NUM_BYTES // case.sizes["bucket_bytes"])
    return Budget(judge=rules(_early, _asynchronous, _hooks_removed, num_calls=calls, num_bytes=NUM_BYTES))


def _before_mark(outcome: Any) -> list[Any]:
    """The calls that began before backward reached the first layer."""
    marks = [number for number, event in enumerate(outcome.events) if event.function == MARK]
    return calls_of(outcome)[: marks[0]] if marks else []


def _early(evidence: Evidence) -> Fault | None:
    for rank, outcome in enumerate(evidence.outcomes):
        if not _before_mark(outcome):
            return Fault("late", f"rank {rank} has begun no all_reduce when backward reaches the first layer")
    return None


def _asynchronous(evidence: Evidence) -> Fault | None:
    for rank, outcome in enumerate(evidence.outcomes):
        events = _before_mark(outcome)
        waits = [e for e in events if not e.is_async or _waited_before(e, outcome)]
        if waits:
            return Fault("blocking", f"rank {rank} waits for {len(waits)} of its calls before backward goes on")
    return None


def _waited_before(event: Any, outcome: Any) -> bool:
    mark = next(e for e in outcome.events if e.function == MARK)
    return event.wait_begin_s is not None and event.wait_begin_s < mark.begin_s


def _hooks_removed(evidence: Evidence) -> Fault | None:
    for rank, outcome in enumerate(evidence.outcomes):
        if outcome.facts.get("hooks"):
            return Fault("hooks", f"rank {rank} leaves hooks on {outcome.facts['hooks']} parameters")
    return None


def _out_of_turn(finding: Finding) -> bool:
    """Mixed up only where branches fill buckets of their own."""
    evidence = finding.evidence
    return any(o.right for o in finding.others) and not evidence.right and evidence.would_give(_mixed_up(evidence))


def _mixed_up(evidence: Evidence) -> list[Any]:
    """Each rank lays its gradients out in the order in which they arrive there."""
    from tpcourse.check.lesson04.nets import order_of_arrival

    orders = [order_of_arrival(given["model"].weights, given["model"].swaps) for given in evidence.inputs]
    flats = [
        np.concatenate([gradients[number].ravel() for number in order])
        for gradients, order in zip(map(of_mean, evidence.inputs), orders, strict=True)
    ]
    return [_laid_out(np.mean(flats, axis=0), order) for order in orders]


def _laid_out(flat: np.ndarray, order: list[int]) -> list[np.ndarray]:
    shapes = list(SHAPES.values())
    ends = np.cumsum([np.prod(shapes[number], dtype=int) for number in order])[:-1]
    found = dict(zip(order, np.split(flat, ends), strict=True))
    return [found[number].reshape(shape) for number, shape in enumerate(shapes)]


EXERCISE = Exercise(
    name="overlapped_gradients",
    values="every rank returns the average of all ranks' gradients, also where branches ran in another order",
    communication="ceil(n / bucket) all_reduce calls; the first leaves before backward ends, and no hook waits",
    cases=cases,
    free=("bucket_bytes",),
    free_step=8,
    make=make,
    expected=expected,
    budget=budget,
    probe="lesson04.rank_overlapped_gradients",
    misconceptions=(
        *COMMON,
        Misconception(
            "out of turn",
            _out_of_turn,
            "A full bucket leaves before an earlier one: which is full first differs between ranks, and left.bias of "
            "one was averaged with right.bias of another.",
            "A bucket leaves when all its members have arrived, and a full bucket waits until all before it have left.",
        ),
        by_outputs(
            "order of arrival",
            _mixed_up,
            "The order of the gradients in the buckets differs between ranks: left.bias of one was averaged with "
            "right.bias of another.",
            "Decide before backward what each bucket holds, from `model.parameters()` alone; the hooks only count, "
            "and a full bucket waits until all before it have left.",
        ),
        by_fault(
            "late",
            "late",
            "Nothing has left when backward reaches the first layer: all buckets wait for the end, and none is hidden.",
            "Fill buckets from the last parameter on; begin a bucket's all-reduce in the hook that completes it.",
        ),
        by_fault(
            "waits in the hook",
            "blocking",
            "A hook waits for its all-reduce, and backward waits for the hook: it leaves early, and nothing is hidden.",
            "`async_op=True` in the hook, keep the handle, and `wait` behind backward.",
        ),
        by_fault(
            "hooks left",
            "hooks",
            "The hooks are still there: the next backward of this model calls them again, and they send once more.",
            "`register_post_accumulate_grad_hook` returns a handle: `hook.remove()` behind backward.",
        ),
        Misconception(
            "tied twice",
            tied_again,
            "The tied matrix travels twice, once for each layer that uses it: it is one parameter with one gradient.",
            "`model.parameters()` names a tied parameter once.",
        ),
        by_fault(
            "too many calls",
            "calls",
            "The first bucket leaves early, and there are too many of them: a hook sends what has just arrived.",
            "A bucket leaves when all its members have arrived: count them.",
        ),
        none_left(
            "not there yet",
            "A bucket leaves before all its gradients are there: one of them is still None.",
            "A bucket may leave when *all* its members have arrived.",
        ),
        SUM_FOR_MEAN,
        NOT_AVERAGED,
    ),
)
