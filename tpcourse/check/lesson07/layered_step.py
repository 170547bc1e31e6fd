"""Exercise `layered_step(x, target, layers, pieces, dp)`: gather a layer just before use, free it just after."""

from __future__ import annotations

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson07 import common, gathering, layer_values, layers
from tpcourse.check.lesson07.common import BYTES, Inputs
from tpcourse.check.report import Line
from tpcourse.check.spec import Exercise


def budget(case: Case, inputs: Inputs) -> Budget:
    """Two all-gathers and a reduce-scatter of every layer."""
    return common.rules(layers.calls(case), least=layers.least(case))


def bytes_held(cases: list[Evidence]) -> Line:
    """One layer's weights whenever a layer or a gather begins."""
    passed = "one gathered layer at a time; in backward at most two whole gradients beside it"
    return common.held_line(cases, gathering.over(ahead=0), passed)


def _kept(evidence: Evidence, rank: int) -> bool:
    return layers.over_in(0, layers.FORWARD)(evidence, rank)


def _gradients_kept(evidence: Evidence, rank: int) -> bool:
    return layers.over_in(0, layers.BACKWARD)(evidence, rank) and layers.scatters_last(evidence, rank)


def _done_gradients(evidence: Evidence, rank: int) -> bool:
    """More than two arrays as long as a whole gradient, and not as gathered weights with their padding."""
    of = layers.stack(evidence.case)
    lengths = {BYTES * size for size in of.sizes} - {BYTES * whole for whole in of.wholes}
    over = (moment for moment in layers.moments(evidence, rank) if moment.kind == layers.BACKWARD)
    return any(sum(size in lengths for size in moment.storages) > 2 for moment in over)


EXERCISE = Exercise(
    name="layered_step",
    values="y is this rank's, and each gradient is its piece of the average over ranks",
    communication="2 all_gathers and 1 reduce_scatter of each layer: 3 (p-1)/p of the weights",
    cases=layers.cases,
    free=("D",),
    make=layers.make,
    expected=layers.expected,
    budget=budget,
    third=bytes_held,
    probe="lesson07.rank_layered_step",
    imports=common.SLOW,
    misconceptions=(
        *common.FIRST,
        *layer_values.VALUES,
        layer_values.ALL_REDUCE,
        common.by_line(
            "all at once",
            layers.gathers_all_first,
            "All layers are gathered before the first computes: the whole model is on every rank, as without ZeRO.",
            "Gather within the loop over layers: one, compute, free.",
        ),
        common.by_line(
            "never frees",
            _kept,
            "A layer's weights are still there when the next one computes: a name, a list or a view of them keeps "
            "the whole array.",
            "Keep the layers' inputs for backward, not their weights. `del`, or a function whose local names end, lets "
            "a tensor go.",
        ),
        common.by_line(
            "gradients kept",
            _gradients_kept,
            "The whole gradients of all layers wait until backward has ended: as many bytes as the model has weights.",
            "Reduce-scatter a layer's gradient as soon as `layer.backward` has returned it, and keep the piece.",
        ),
        common.by_line(
            "done gradients kept",
            _done_gradients,
            "Whole gradients of the layers behind this one are still there, though their pieces have been sent: a name "
            "or a list keeps them.",
            "Once a gradient is reduce-scattered, keep the piece alone.",
        ),
        common.by_line(
            "never frees in backward",
            layers.over_in(0, layers.BACKWARD),
            "Forward frees its weights, and backward does not: what a layer gathered is there when the next begins.",
            "The same care in both loops: gather, compute, let go.",
        ),
        gathering.kept_meanwhile(ahead=0),
        common.OVER_BUDGET,
    ),
)
