"""Exercise `row_product(x, weight, bias, tp)`: partial sums added up, the bias added once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson05 import bias, common
from tpcourse.check.lesson05.given import Inputs, arguments, cut, whole
from tpcourse.check.misconceptions import Finding, Misconception
from tpcourse.check.spec import Exercise, nonzero

GATHER = "all_gather"
Way = Callable[[Evidence], list[Any]]
cases = common.cases(B=(2, 5, 3), F=(6, 9, 8), D=(5, 4, 6))


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """The columns of x and of weight cut; the bias whole."""
    B, F, D = case.sizes.values()
    p = case.p
    return arguments(
        x=cut(nonzero(generator, B, F), p, 1),
        weight=cut(nonzero(generator, D, F), p, 1),
        bias=whole(nonzero(generator, D), p),
        dy=whole(nonzero(generator, B, D), p, leaf=False),
    )


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The whole product on every rank, and each rank's share of its gradients."""
    from tpcourse.check.lesson05.devices import on_one_device

    return on_one_device(inputs, lambda x, weight, bias: x @ weight.T + bias, {"x": 1, "weight": 1})


def budget(case: Case, inputs: Inputs) -> Budget:
    """y, once."""
    size = inputs[0]["dy"].array.size
    return common.rules(pairs=False, tp=common.Sums(1, size, forward=size))


def played(before: str = "no", after: str = "all", sums: str = "sum_copy") -> Way:
    """How much of the bias is added before the sum and after it ("no", "all", "1/p"), and which sum it is."""

    def way(evidence: Evidence) -> list[Any]:
        from tpcourse.check.lesson05 import devices

        def forward(ranks: list[Any]) -> list[Any]:
            parts = bias.added([r["x"] @ r["weight"].T for r in ranks], ranks, "bias", before)
            return bias.added(getattr(devices, sums)(parts) if sums else parts, ranks, "bias", after)

        return devices.on_ranks(evidence.inputs, forward, summed=())

    return way


def _gathers(finding: Finding, partial: bool) -> bool:
    """Whether a rank gathers pieces in the shape of y, or others."""
    pairs = zip(finding.evidence.outcomes, finding.evidence.inputs, strict=True)
    shapes = [(e.shape, given["dy"].array.shape) for outcome, given in pairs for e in outcome.events if e.op == GATHER]
    return any((shape == whole) == partial for shape, whole in shapes)


EXERCISE = Exercise(
    name="row_product",
    values="y is whole on every rank, and dx, dweight and dbias are those of one device",
    communication="one all_reduce, of y in forward",
    cases=cases,
    free=("B", "F", "D"),
    make=make,
    expected=expected,
    budget=budget,
    probe=common.PROBE,
    misconceptions=(
        *common.COMMON,
        common.by_playing(
            "bias before the sum",
            "y is too large by (p-1) x bias: every rank puts the bias into a sum over ranks, and it is in there p "
            "times.",
            "Add up the products alone, then add the bias once.",
            played("all", "no"),
        ),
        common.by_playing(
            "bias over p before the sum",
            "y is right, and dbias is p times too small: each rank put bias/p into the sum, so its bias takes 1/p of "
            "the step.",
            "Add the whole bias after the sum: its gradient is the whole dy then, on every rank.",
            played("1/p", "no"),
        ),
        bias.on_one_rank(3),
        bias.summed(3),
        common.by_playing(
            "not summed",
            "y is partial: the ranks' values add up to the right one, and each rank returns its own.",
            "F is the dim that the product adds over, and it is cut: all-reduce the product.",
            played(sums=""),
        ),
        common.by_playing(
            "summed both ways",
            "y is right, and gradients are p times too large: backward adds up dy, which is equal on all ranks and "
            "stands for one tensor.",
            "`backward` of the sum returns `dy` as it is; it sends nothing.",
            played(sums="sum_sum"),
        ),
        Misconception(
            "averaged",
            bias.averaged("bias"),
            "The products are averaged: y is a sum over F, and each rank has some of its terms.",
            "Leave out the division by p.",
        ),
        Misconception(
            "gathered sum",
            lambda f: f.evidence.right and _gathers(f, partial=True),
            "The partial y are gathered, and every rank adds up all of them: the right sum, for p/2 times the bytes of "
            "an all-reduce.",
            "`dist.all_reduce` adds up on the way, so that no rank gets every part.",
        ),
        Misconception(
            "gathered",
            lambda f: _gathers(f, partial=False),
            "Pieces are gathered to repeat the whole product on every rank: that is one device's work, p times.",
            "Multiply what this rank has, and add up the results.",
        ),
        *common.LAST,
    ),
)
