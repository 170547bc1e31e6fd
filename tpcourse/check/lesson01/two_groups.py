"""Exercise `two_groups(activation, gradient, gradient_first, tp, dp)`: the bug hunt, two groups used crosswise."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, first_fault
from tpcourse.check.compare import agree
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson04.common import all_waited
from tpcourse.check.misconceptions import Finding, Misconception, by_fault, by_outputs
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

Inputs = list[dict[str, Any]]
GRID = {"tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))}


def cases(world_size: int) -> list[Case]:
    """Two groups over the same ranks at 2 and 3, a grid of 2 x 2 at 4."""
    return [_case(p, world_size) for p in group_sizes(world_size)]


def _case(p: int, world_size: int) -> Case:
    members = one_group(p, world_size).members
    groups = GRID if p == 4 else {"tp": (members,), "dp": (members,)}
    return Case(members, dict(groups), {"activations": p + 1, "gradients": p + 3})


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Some ranks have their gradient first, chosen so that the groups wait for each other."""
    first = (False, True, True, False) if case.p == 4 else (False, True, False)
    return [
        {
            "activation": nonzero(generator, case.sizes["activations"]),
            "gradient": nonzero(generator, case.sizes["gradients"]),
            "gradient_first": first[rank],
        }
        for rank in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The activation summed over tp, the gradient over dp."""
    return [[_sum(case, inputs, "activation", "tp", r), _sum(case, inputs, "gradient", "dp", r)] for r in range(case.p)]


def _sum(case: Case, inputs: Inputs, name: str, axis: str, rank: int) -> Any:
    own = case.members[rank]
    group = next(part for part in case.groups[axis] if own in part)
    return sum(inputs[case.members.index(member)][name] for member in group)


def budget(case: Case, inputs: Inputs) -> Budget:
    """One all-reduce on each axis."""
    calls = []
    for name, axis in (("activation", "tp"), ("gradient", "dp")):
        p, num_bytes = len(case.groups[axis][0]), inputs[0][name].nbytes
        calls.append(("all_reduce", axis, -(-2 * (p - 1) * num_bytes // p)))
    allowed = Budget(calls=tuple(calls))
    return Budget(judge=lambda evidence: first_fault(evidence, allowed) or all_waited(evidence))


def _ops(finding: Finding) -> set[str]:
    return {event.op for outcome in finding.evidence.outcomes for event in outcome.events}


def _axes(finding: Finding) -> set[str]:
    return {event.axis for outcome in finding.evidence.outcomes for event in outcome.events}


def _orders(finding: Finding) -> set[tuple[str, ...]]:
    return {tuple(event.axis for event in outcome.events)[:1] for outcome in finding.evidence.outcomes}


def _one_group_for_both(finding: Finding) -> bool:
    return finding.evidence.finished and len(_axes(finding)) == 1 and finding.fault_kind == "calls" and all(
        len(outcome.events) == 2 for outcome in finding.evidence.outcomes
    )


def _one_not_summed(finding: Finding) -> bool:
    evidence = finding.evidence
    return evidence.finished and any(
        isinstance(output, list) and len(output) == 2 and any(
            agree(output[i], evidence.inputs[rank][name]) for i, name in enumerate(("activation", "gradient"))
        )
        for rank, output in enumerate(evidence.outputs)
    )


def _crossed(evidence: Evidence) -> list[Any]:
    """The activation summed over dp and the gradient over tp."""
    pairs = (("activation", "dp"), ("gradient", "tp"))
    ranks = range(evidence.p)
    return [[_sum(evidence.case, evidence.inputs, name, axis, rank) for name, axis in pairs] for rank in ranks]


def _averaged(finding: Finding) -> bool:
    """One of the two, or both, is the mean over its group."""
    evidence, by = finding.evidence, {axis: len(parts[0]) for axis, parts in finding.evidence.case.groups.items()}
    means = [[total / p for total, p in zip(row, (by["tp"], by["dp"]), strict=True)] for row in evidence.expected]
    mixed = zip(evidence.expected, means, strict=True)
    either = [[(a, n), (m, b), (m, n)] for (a, b), (m, n) in mixed]
    return any(evidence.would_give([list(row[way]) for row in either]) for way in range(3))


def _swapped(evidence: Evidence) -> list[Any]:
    return [output[::-1] for output in evidence.expected]


EXERCISE = Exercise(
    name="two_groups",
    values="the activation is summed over tp and the gradient over dp, whichever was ready first",
    communication="one all_reduce on tp and one on dp, in the same order on every rank",
    cases=cases,
    free=("activations", "gradients"),
    make=make,
    expected=expected,
    budget=budget,
    may_change=("activation", "gradient"),
    misconceptions=(
        Misconception(
            "barrier",
            lambda f: "barrier" in _ops(f),
            "A barrier makes all ranks begin together, and then they call in different orders as before.",
            "Leave the barrier out; the order of the two sums is what has to agree.",
        ),
        Misconception(
            "world",
            lambda f: "world" in _axes(f),
            "A call runs over the world: a rank that is in neither group never makes it, and the others wait for it.",
            "Pass `group=tp` with the activation and `group=dp` with the gradient.",
        ),
        Misconception(
            "handles",
            lambda f: f.fault_kind == "handles",
            "One of the two sums was begun and not waited for: what is returned may still be without it.",
            "Keep both handles, and `wait` on each before you return.",
        ),
        Misconception(
            "still crosswise",
            lambda f: bool(f.evidence.failure) and len(_orders(f)) > 1,
            "Some ranks begin with tp and some with dp, so each group waits for a rank that waits in "
            "the other group.",
            "The order may not depend on what only one rank knows: do not look at gradient_first.",
        ),
        by_fault(
            "order differs",
            "order",
            "Nobody waits, but only because the calls are asynchronous: their order still differs between ranks, "
            "and NCCL may run one at a time.",
            "Begin both sums in the same order on every rank; then wait for both.",
        ),
        Misconception(
            "one group for both",
            _one_group_for_both,
            "Both sums run over the same group: nobody waits, and one of the sums has the wrong members.",
            "The activation is summed over tp and the gradient over dp.",
        ),
        Misconception(
            "one not summed",
            _one_not_summed,
            "One of the two comes back as it was given: its sum was left out, or it was not waited for.",
            "Both sums are needed, whatever their order.",
        ),
        by_outputs(
            "crossed",
            _crossed,
            "The groups are exchanged: the activation is summed over dp and the gradient over tp.",
            "`group=tp` with the activation, `group=dp` with the gradient.",
        ),
        Misconception(
            "average",
            _averaged,
            "A result is the average over its group: the sum, divided by the number of ranks.",
            "Both are sums here: leave `op` as it is, and divide nothing.",
        ),
        by_outputs(
            "swapped",
            _swapped,
            "The two results are swapped.",
            "Return the activation first and the gradient second.",
        ),
    ),
)
