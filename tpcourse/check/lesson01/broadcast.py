"""Exercise `tree_broadcast(x, root, group)`: the root's [n] on every rank in ceil(log2 p) steps, from any root."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.compare import agree
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.misconceptions import Finding, Misconception, by_fault, by_outputs
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

Inputs = list[dict[str, Any]]


def cases(world_size: int) -> list[Case]:
    """Rank 0 as root in every group, then another root in every group."""
    sizes = list(zip(group_sizes(world_size), (4, 3, 5), strict=False))
    first = [one_group(p, world_size, n=n, root=0) for p, n in sizes]
    return first + [one_group(p, world_size, n=n + 3, root=p - 1) for p, n in sizes]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Another array on every rank, so that a rank that keeps its own is seen."""
    return [{"x": nonzero(generator, case.sizes["n"]), "root": case.sizes["root"]} for _ in range(case.p)]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The root's array, everywhere."""
    return [inputs[case.sizes["root"]]["x"]] * case.p


def budget(case: Case, inputs: Inputs) -> Budget:
    """ceil(log2 p) steps; every rank but the root receives n bytes."""
    steps, num_bytes = (case.p - 1).bit_length(), inputs[0]["x"].nbytes
    received = tuple(0 if rank == case.sizes["root"] else num_bytes for rank in range(case.p))
    sent, messages = (steps * num_bytes,) * case.p, (steps,) * case.p
    return Budget(sent=sent, received=received, messages=messages, total=case.p - 1, rounds=steps)


def _root(evidence: Evidence) -> int:
    return evidence.case.sizes["root"]


def _own_kept(finding: Finding) -> bool:
    """Some rank still has its own array, and nothing came to it."""
    evidence = finding.evidence
    return evidence.finished and any(
        rank != _root(evidence)
        and agree(outcome.result, evidence.inputs[rank]["x"])
        and not any(event.op == "recv" for event in outcome.events)
        for rank, outcome in enumerate(evidence.outcomes)
    )


def _too_early(finding: Finding) -> bool:
    """Some rank has what another rank held before the root's array reached it."""
    evidence = finding.evidence
    others = [given["x"] for rank, given in enumerate(evidence.inputs) if rank != _root(evidence)]
    return evidence.finished and not evidence.right and any(
        agree(output, other) for output in evidence.outputs for other in others
    )


def _star(finding: Finding) -> bool:
    evidence = finding.evidence
    return finding.fault_kind in ("bytes", "messages", "rounds") and len(
        evidence.outcomes[_root(evidence)].sends
    ) == evidence.p - 1


def _powers_only(finding: Finding) -> bool:
    """Fails at 3 ranks and passed at 2."""
    evidence = finding.evidence
    others = any(other.right and other.p == 2 for other in finding.others)
    return others and not evidence.right and bool(evidence.p & (evidence.p - 1))


def _root_zero_only(finding: Finding) -> bool:
    evidence, passed = finding.evidence, [other for other in finding.others if other.case.sizes["root"] == 0]
    return not evidence.right and _root(evidence) != 0 and bool(passed) and all(other.right for other in passed)


EXERCISE = Exercise(
    name="tree_broadcast",
    values="every rank returns the root's x, for every number of ranks and every root",
    communication="only send and receive, ceil(log2 p) steps, each rank receives x once",
    cases=cases,
    free=("n",),
    make=make,
    expected=expected,
    budget=budget,
    may_change=("x",),
    misconceptions=(
        Misconception(
            "star",
            _star,
            "The root sends to everyone by itself: the values are right, and the others, who have x "
            "by then, do nothing.",
            "After each step the ranks that have x double: let everyone who has it pass it on.",
        ),
        by_fault(
            "chain",
            "rounds",
            "Each rank passes x on to one other only: a chain, as many steps as there are ranks to reach.",
            "Who has x sends it again in every following step, to ranks 1, 2, 4, ... places away.",
        ),
        by_outputs(
            "root ignored",
            lambda e: [e.inputs[0]["x"]] * e.p,
            "Every rank returns the x of rank 0: the root was ignored.",
            "Count from the root, v = (rank - root) mod p, so that the root is 0; send to (v + "
            "distance + root) mod p.",
        ),
        Misconception(
            "root 0 only",
            _root_zero_only,
            "It works if rank 0 is the root and fails for another root: places in the tree are "
            "counted from rank 0.",
            "Count from the root, v = (rank - root) mod p, and turn back with (v + root) mod p when you send.",
        ),
        Misconception(
            "own kept",
            _own_kept,
            "Some rank returns its own x: nothing was ever sent to it.",
            "There are ceil(log2 p) steps: go on while distance < p.",
        ),
        Misconception(
            "powers of two only",
            _powers_only,
            "It works only if p is a power of two: in the last step some ranks have nobody left to send to.",
            "Send only if v + distance < p.",
        ),
        Misconception(
            "too early",
            _too_early,
            "A rank passed x on before the root's x had reached it, so what it held before went round.",
            "In the step with this distance only ranks v < distance send; v in [distance, 2 distance) receive.",
        ),
    ),
)
