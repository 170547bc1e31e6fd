"""Exercise `parallel_mlp(x, weight1, bias1, weight2, bias2, tp)`: columns, then rows; two sums in all."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson05 import bias, common
from tpcourse.check.lesson05.given import Inputs, arguments, cut, whole
from tpcourse.check.misconceptions import Misconception
from tpcourse.check.spec import Exercise, nonzero

cases = common.cases(B=(3, 2, 2), T=(4, 5, 3), D=(5, 4, 7), F=(6, 9, 8))
DIMS = {"weight1": 0, "bias1": 0, "weight2": 1}


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """x and the second bias whole; the rows of the first weight and the columns of the second cut."""
    B, T, D, F = case.sizes.values()
    return mlp_inputs(generator, case.p, (B, T, D, F))


def mlp_inputs(generator: np.random.Generator, p: int, sizes: tuple[int, int, int, int]) -> Inputs:
    """Arguments of an MLP; also the bug hunt's."""
    B, T, D, F = sizes
    return arguments(
        x=whole(nonzero(generator, B, T, D), p),
        weight1=cut(0.5 * nonzero(generator, F, D), p, 0),
        bias1=cut(nonzero(generator, F), p, 0),
        weight2=cut(0.5 * nonzero(generator, D, F), p, 1),
        bias2=whole(nonzero(generator, D), p),
        dy=whole(nonzero(generator, B, T, D), p, leaf=False),
    )


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The MLP of one device."""
    from torch.nn.functional import gelu

    from tpcourse.check.lesson05.devices import on_one_device

    def mlp(x: Any, weight1: Any, bias1: Any, weight2: Any, bias2: Any) -> Any:
        return gelu(x @ weight1.T + bias1) @ weight2.T + bias2

    return on_one_device(inputs, mlp, DIMS)


def budget(case: Case, inputs: Inputs) -> Budget:
    """y forward and dx backward."""
    size = inputs[0]["x"].array.size
    return common.rules(tp=common.Sums(2, 2 * size, forward=size))


def played(summed: tuple[str, ...] = ("x",), **steps: str) -> Any:
    """The MLP with some other pair at a step: `before` and `after` the first product, `middle`, `leave`; or with
    another amount of bias2 `inside` the sum and `outside`.
    """

    def way(evidence: Evidence) -> list[Any]:
        from torch.nn.functional import gelu

        from tpcourse.check.lesson05 import devices

        def at(step: str, tensors: list[Any], default: str = "") -> list[Any]:
            name = steps.get(step, default)
            return getattr(devices, name)(tensors) if name else tensors

        def forward(ranks: list[Any]) -> list[Any]:
            xs = at("before", [r["x"] for r in ranks])
            hs = at("after", [x @ r["weight1"].T for x, r in zip(xs, ranks, strict=True)])
            hs = at("middle", [gelu(h + r["bias1"]) for h, r in zip(hs, ranks, strict=True)])
            ys = [h @ r["weight2"].T for h, r in zip(hs, ranks, strict=True)]
            ys = at("leave", bias.added(ys, ranks, "bias2", steps.get("inside", "no")), "sum_copy")
            return bias.added(ys, ranks, "bias2", steps.get("outside", "no" if "inside" in steps else "all"))

        return devices.on_ranks(evidence.inputs, forward, summed)

    return way


EXERCISE = Exercise(
    name="parallel_mlp",
    values="y is whole on every rank; dx and the gradients of weights and biases are those of one device",
    communication="two all_reduce: y in forward, dx in backward",
    cases=cases,
    free=("B", "T", "D", "F"),
    make=make,
    expected=expected,
    budget=budget,
    probe=common.PROBE,
    misconceptions=(
        *common.COMMON,
        common.by_playing(
            "not summed in backward",
            "y is right, and dx is short by the other ranks' share: x enters p different products, and backward never "
            "adds up what comes back.",
            "x is replicated, and the work behind it is split: `copy_sum(x, group=tp)` where it enters.",
            played(summed=()),
        ),
        common.by_call(
            "gather between the products",
            common.gathers,
            "h is gathered between the two products. The second one wants just the columns of h that this rank has.",
            "Columns first, rows second: their cuts fit, and nothing has to travel between them.",
        ),
        common.by_playing(
            "a pair around each product",
            "h is added up after the first product: these are different columns of h, and no sum is due there.",
            "One pair for both products: copy x in front of the first, sum behind the second.",
            played(after="sum_copy"),
            played(after="sum_copy", middle="copy_sum"),
            played(after="sum_sum"),
            played((), after="sum_copy"),
        ),
        common.by_playing(
            "copy before the second product",
            "y is right, and dh is added up over ranks: every rank has its own columns of h, and their gradients were "
            "complete.",
            "`copy_sum` belongs where a replicated tensor meets split work. h is split already.",
            played(middle="copy_sum"),
            played((), middle="copy_sum"),
        ),
        common.by_playing(
            "pairs swapped",
            "The two halves are swapped: x is added up where it enters, and y is partial where it leaves.",
            "Replicated to split: copy forward, sum backward. Partial to replicated: sum forward, copy backward.",
            played((), before="sum_copy", leave="copy_sum"),
        ),
        common.by_playing(
            "not summed in forward",
            "y is partial: each rank returns the product of its own columns of h.",
            "`sum_copy(partial, group=tp)` behind the second product, then the bias.",
            played(leave=""),
        ),
        common.by_playing(
            "bias before the sum",
            "y is too large by (p-1) x bias2: each rank adds bias2 before the sum.",
            "Add bias2 behind the sum, where it is added once.",
            played(inside="all"),
        ),
        common.by_playing(
            "bias over p",
            "y is right, and dbias2 is p times too small: each rank put bias2/p into the sum, so its bias2 takes 1/p "
            "of the step.",
            "Keep bias2 out of the sum, and do not scale it.",
            played(inside="1/p"),
        ),
        bias.on_one_rank(5),
        bias.summed(5),
        Misconception(
            "averaged",
            bias.averaged("bias2"),
            "The products of the ranks are averaged: they are the terms of one sum over F.",
            "Leave out the division by p.",
        ),
        common.by_playing(
            "summed both ways",
            "y is right, and gradients in front of the sum are p times too large: dy is equal on all ranks, and was "
            "added up.",
            "Partial sums become one replicated tensor: sum forward, copy backward.",
            played(leave="sum_sum"),
        ),
        common.by_playing(
            "weights summed",
            "y is right, and gradients of cut weights are added up: each rank has a part of its own, and the part's "
            "gradient is complete.",
            "Only x is shared by the products of all ranks: only dx is a sum over them.",
            played(("x", "weight1")),
            played(("x", "weight2")),
            played(("x", "weight1", "weight2")),
            played(("x", "weight1", "bias1")),
            played(("x", "weight1", "bias1", "weight2")),
        ),
        *common.LAST,
    ),
)
