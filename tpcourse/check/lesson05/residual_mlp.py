"""Exercise `residual_mlp(x, weight1, bias1, weight2, bias2, tp)`: the bug hunt, an output off by (p-1) x bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson05 import bias, common, parallel_mlp
from tpcourse.check.lesson05.given import Inputs
from tpcourse.check.misconceptions import Misconception
from tpcourse.check.spec import Exercise

cases = common.cases(B=(2, 3, 2), T=(3, 2, 5), D=(4, 5, 6), F=(6, 9, 8))


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """As the MLP's."""
    B, T, D, F = case.sizes.values()
    return parallel_mlp.mlp_inputs(generator, case.p, (B, T, D, F))


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """x and its MLP."""
    from torch.nn.functional import gelu

    from tpcourse.check.lesson05.devices import on_one_device

    def block(x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any) -> Any:
        return x + gelu(x @ weight1.T + bias1) @ weight2.T + bias2

    return on_one_device(inputs, block, parallel_mlp.DIMS)


def budget(case: Case, inputs: Inputs) -> Budget:
    """The MLP's output forward, its share of dx backward."""
    size = inputs[0]["x"].array.size
    return common.rules(tp=common.Sums(2, 2 * size, forward=size))


def played(
    before: str = "no", after: str = "no", inside: bool = False, scale: str = "all", copied: bool = False
) -> Any:
    """How much of bias2 is added before the sum and after it; `inside` has x in the sum too, and `copied` sends the x
    past the MLP through the copy.
    """

    def way(evidence: Evidence) -> list[Any]:
        from torch.nn.functional import gelu

        from tpcourse.check.lesson05 import devices

        much = {name: bias.amount(name, evidence.p) for name in (before, after, scale)}

        def forward(ranks: list[Any]) -> list[Any]:
            hs = [gelu(r["x"] @ r["weight1"].T + r["bias1"]) for r in ranks]
            ys = [h @ r["weight2"].T + much[before] * r["bias2"] for h, r in zip(hs, ranks, strict=True)]
            ys = [y + r["x"] for y, r in zip(ys, ranks, strict=True)] if inside else ys
            ys = [much[scale] * y + much[after] * r["bias2"] for y, r in zip(devices.sum_copy(ys), ranks, strict=True)]
            return ys if inside else [y + r["x"].detach() for y, r in zip(ys, ranks, strict=True)]

        found = devices.on_ranks(evidence.inputs, forward)
        if not inside:  # x past the MLP: its gradient is dy itself, and belongs to no sum over ranks
            for result, given in zip(found, evidence.inputs, strict=True):
                result[1] = result[1] + (evidence.p if copied else 1) * given["dy"].array
        return found

    return way


EXERCISE = Exercise(
    name="residual_mlp",
    values="y and all gradients are those of one device, with biases that are not zero",
    communication="two all_reduce: the MLP's output in forward, its share of dx in backward",
    cases=cases,
    free=("B", "T", "D", "F"),
    make=make,
    expected=expected,
    budget=budget,
    probe=common.PROBE,
    misconceptions=(
        *common.COMMON,
        common.by_playing(
            "untouched",
            "y is off by (p-1) x bias2, as it was: `linear(h, weight2, bias2)` adds bias2 on every rank, and then the "
            "ranks are added up.",
            "Let `linear` have the weight only, and add bias2 where it is added once.",
            played("all"),
        ),
        common.by_playing(
            "bias over p",
            "y is right now, and dbias2 is p times too small: the bias will learn at 1/p of its rate.",
            "Do not scale the bias: move it behind the sum.",
            played("1/p"),
        ),
        common.by_playing(
            "subtracted",
            "y is right now, and dbias2 is not: what was added p-1 times too often is taken off again, and so is its "
            "gradient.",
            "Do not repair the sum: keep the bias out of it.",
            played("all", "-(p-1)"),
        ),
        Misconception(
            "bias on one rank",
            common.first_only(5),
            "y is right now, and only the first rank's copy of bias2 has a gradient: after one step the copies differ.",
            "Every rank adds its copy behind the sum, to a y that is whole there.",
        ),
        bias.summed(5),
        common.by_playing(
            "averaged",
            "bias2 is right now, and the products are averaged: they are the terms of one sum.",
            "The sum was right. What it was given was not.",
            played("all", scale="1/p"),
        ),
        common.by_playing(
            "dropped",
            "bias2 is gone: right for a model whose biases are zero, which is how this bug stayed hidden.",
            "It is added once, behind the sum.",
            played(),
        ),
        common.by_playing(
            "residual inside the sum",
            "x is inside the sum as well: it comes out p times, as the bias does.",
            "Only partial results belong into the sum: neither x nor bias2 is one.",
            played("all", inside=True),
            played("no", "all", inside=True),
        ),
        common.by_playing(
            "residual behind the copy",
            "y is right, and dx has dy in it p times: the x that is added to the sum went through the copy as well, "
            "whose backward adds up over ranks.",
            "`copy_sum` is for the x that enters the split products. The other one is whole here, and so is its "
            "gradient.",
            played("no", "all", copied=True),
        ),
        *common.LAST,
    ),
)
