"""Exercise `column_product(x, weight, bias, tp)`: this rank's columns of y, and the sum that backward owes x."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson05 import common
from tpcourse.check.lesson05.given import Inputs, arguments, cut, whole
from tpcourse.check.misconceptions import Finding, Misconception
from tpcourse.check.spec import Exercise, nonzero

cases = common.cases(B=(2, 4, 5), D=(5, 6, 4), F=(8, 9, 12))


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """x whole, the rows of weight and bias cut: the columns of y."""
    B, D, F = case.sizes.values()
    p = case.p
    return arguments(
        x=whole(nonzero(generator, B, D), p),
        weight=cut(nonzero(generator, F, D), p, 0),
        bias=cut(nonzero(generator, F), p, 0),
        dy=cut(nonzero(generator, B, F), p, 1, leaf=False),
    )


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The columns of one product, and gradients of all of it."""
    from tpcourse.check.lesson05.devices import on_one_device

    return on_one_device(inputs, lambda x, weight, bias: x @ weight.T + bias, {"y": 1, "weight": 0, "bias": 0})


def budget(case: Case, inputs: Inputs) -> Budget:
    """The gradient of x, once."""
    return common.rules(pairs=False, tp=common.Sums(1, inputs[0]["x"].array.size, forward=0))


def played(summed: tuple[str, ...] = ("x",), enter: str = "") -> Callable[[Evidence], list[Any]]:
    """The product, with the gradients of `summed` added up in backward, and x sent through `enter` before it."""

    def way(evidence: Evidence) -> list[Any]:
        from tpcourse.check.lesson05 import devices

        def forward(ranks: list[Any]) -> list[Any]:
            xs = [r["x"] for r in ranks]
            xs = getattr(devices, enter)(xs) if enter else xs
            return [x @ r["weight"].T + r["bias"] for x, r in zip(xs, ranks, strict=True)]

        return devices.on_ranks(evidence.inputs, forward, summed)

    return way


def _averaged(evidence: Evidence) -> list[Any]:
    return [[y, dx / evidence.p, *others] for y, dx, *others in evidence.expected]


def _columns_added(finding: Finding, in_forward: bool) -> bool:
    """Whether a rank adds up something in the shape of y, before its forward ends or after it."""
    for outcome, given in zip(finding.evidence.outcomes, finding.evidence.inputs, strict=True):
        num_forward = outcome.facts.get("forward", len(outcome.events))
        events = outcome.events[:num_forward] if in_forward else outcome.events[num_forward:]
        if any(event.op == "all_reduce" and event.shape == given["dy"].array.shape for event in events):
            return True
    return False


EXERCISE = Exercise(
    name="column_product",
    values="y has this rank's columns, and dx, dweight and dbias are those of one device",
    communication="one all_reduce, of dx in backward",
    cases=cases,
    free=("B", "D", "F"),
    make=make,
    expected=expected,
    budget=budget,
    probe=common.PROBE,
    misconceptions=(
        *common.COMMON,
        common.by_playing(
            "not summed",
            "y is right, and dx is short by the other ranks' share: x went into p products, and only this rank's came "
            "back.",
            "In `backward` of the copy, add up `dy` over `tp` before you return it.",
            played(summed=()),
        ),
        common.by_playing(
            "pairs swapped",
            "x is added up in forward, so y has p times x in it: all ranks hold the same x already.",
            "Forward hands x on as it is. The sum belongs into `backward`.",
            played((), "sum_copy"),
        ),
        common.by_playing(
            "averaged",
            "dx is p times too small: it was averaged, as in data parallel. Here ranks hold parts of one sum.",
            "Leave out the division by p.",
            _averaged,
        ),
        common.by_call(
            "gathered",
            common.gathers,
            "The whole y is gathered. Nobody asked for it: what comes next takes this rank's columns as they are.",
            "Return the product of x and this rank's weight, and send nothing in forward.",
        ),
        common.by_call(
            "weights summed",
            lambda event, given: any(common.sums_a(name)(event, given) for name in ("weight", "bias")),
            "Gradients of weights are added up. Each rank has columns of its own, and their gradients are complete.",
            "Only x is shared by the products of all ranks: only dx is a sum over them.",
        ),
        Misconception(
            "copy behind the product",
            lambda f: _columns_added(f, in_forward=False),
            "dy is added up: gradients of different columns. x is what all ranks share, so its gradient is the sum.",
            "The copy belongs in front of the product: `Copy.apply(x, tp) @ weight.T`.",
        ),
        Misconception(
            "columns added",
            lambda f: _columns_added(f, in_forward=True),
            "The ranks' y are added up: they are different columns, to be laid side by side.",
            "A sum is due where the dim that the product adds over is cut. Here that dim is D, and it is whole.",
        ),
        *common.LAST,
    ),
)
