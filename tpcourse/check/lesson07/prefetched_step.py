"""Exercise `prefetched_step(x, target, layers, pieces, dp)`: each gather begins a layer ahead."""

from __future__ import annotations

from tpcourse.check.budget import Budget, Fault
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson07 import common, gathering, layer_values, layers
from tpcourse.check.lesson07.common import Inputs
from tpcourse.check.lesson07.layers import BACKWARD, FORWARD, L, Moment
from tpcourse.check.misconceptions import Finding, Misconception, by_fault
from tpcourse.check.report import Line
from tpcourse.check.spec import Exercise


def budget(case: Case, inputs: Inputs) -> Budget:
    """Two all-gathers and a reduce-scatter of every layer, each gather a layer ahead."""
    return common.rules(layers.calls(case), least=layers.least(case), then=_order)


def bytes_held(cases: list[Evidence]) -> Line:
    """Two layers' weights whenever a layer or a gather begins."""
    passed = "two gathered layers at a time, this one and the next; in backward at most two whole gradients beside them"
    return common.held_line(cases, gathering.over(ahead=1), passed)


def _order(evidence: Evidence) -> Fault | None:
    found = (
        fault
        for rule in (_unfinished, _next)
        for rank in range(evidence.p)
        for moment in layers.moments(evidence, rank)
        if (fault := rule(evidence, rank, moment))
    )
    return next(found, None)


def _times(evidence: Evidence, moment: Moment, number: int) -> int:
    """How many gathers of a layer must have begun for this moment's direction; one where layers are kept."""
    again = moment.kind == BACKWARD and number < L - 1 and layers.num_gathers(evidence) > L
    return 2 if again else 1


def _unfinished(evidence: Evidence, rank: int, moment: Moment) -> Fault | None:
    """A layer computes with weights that nobody waited for."""
    own = moment.gathers_of(moment.number, layers.stack(evidence.case))[: _times(evidence, moment, moment.number)]
    if own and own[-1][1] and not own[-1][2]:
        what = f"layer {moment.number} begins its {moment.kind}"
        return Fault("unfinished", f"on rank {rank} {what}, and its all_gather was not waited for")
    return None


def _next(evidence: Evidence, rank: int, moment: Moment) -> Fault | None:
    """The gather of the layer after this one has not begun, or it was waited for already."""
    following = moment.number + (1 if moment.kind == FORWARD else -1)
    if not 0 <= following < L:
        return None
    begun = moment.gathers_of(following, layers.stack(evidence.case))
    what = f"on rank {rank} layer {moment.number} begins its {moment.kind}"
    if len(begun) < (times := _times(evidence, moment, following)):
        return Fault(f"late in {moment.kind}", f"{what} before the all_gather of layer {following} does")
    _, is_async, waited = begun[times - 1]
    kept = times == 1 and moment.kind == BACKWARD
    if not kept and (waited or not is_async):
        return Fault("blocking", f"{what} after waiting for the all_gather of layer {following}")
    return None


def _waits_for_nothing(finding: Finding) -> bool:
    """Also where the values went wrong for it."""
    cases = [case for case in (finding.evidence, *finding.others) if case.finished]
    return any(
        _unfinished(case, rank, moment)
        for case in cases
        for rank in range(case.p)
        for moment in layers.moments(case, rank)
    )


def _one_too_many(finding: Finding) -> bool:
    """One gather more than uses, all others right."""
    return finding.fault_kind == "bytes" and layers.num_gathers(finding.evidence) == 2 * L + 1


def _far_ahead(evidence: Evidence, rank: int) -> bool:
    """More gathers than those of this layer and the next had begun when some layer began its forward."""
    found = [moment for moment in layers.moments(evidence, rank) if moment.kind == FORWARD]
    return any(len(moment.gathers) > moment.number + 2 for moment in found)


def _wrong_way(finding: Finding) -> bool:
    """More gathers than two for each layer."""
    return finding.fault_kind == "bytes" and layers.num_gathers(finding.evidence) > 2 * L


EXERCISE = Exercise(
    name="prefetched_step",
    values="y is this rank's, and each gradient is its piece of the average over ranks",
    communication="each all_gather begins one layer ahead, and is waited for when its layer's turn comes",
    cases=layers.cases,
    free=("D",),
    make=layers.make,
    expected=layers.expected,
    budget=budget,
    third=bytes_held,
    probe="lesson07.rank_prefetched_step",
    imports=common.SLOW,
    misconceptions=(
        common.BORROWED,
        Misconception(
            "never waits",
            _waits_for_nothing,
            "A layer computes with weights that may not have arrived: nobody waited for their gather.",
            "`work.wait()` on this layer's handle, then begin the next gather, then compute.",
        ),
        common.UNWAITED,
        *layer_values.VALUES,
        Misconception(
            "one too many",
            _one_too_many,
            "One gather too many: nothing comes after the last use, and nobody needs what is fetched there.",
            "Begin gather k + 1 only if k + 1 < 2 L.",
        ),
        Misconception(
            "wrong way",
            _wrong_way,
            "In backward the wrong layer is fetched: after layer l comes l - 1 there, and what was fetched is gathered "
            "for nothing.",
            "Write the order of uses as one list: 0 .. L-1, then L-1 .. 0. The next to fetch is the next in the list.",
        ),
        layer_values.ALL_REDUCE,
        by_fault(
            "late",
            "late in forward",
            "No gather begins ahead: each layer waits for its own weights, and nothing is hidden behind the product.",
            "Begin the gather of layer l + 1 with `async_op=True` before `layers[l].forward`.",
        ),
        by_fault(
            "late in backward",
            "late in backward",
            "Forward fetches ahead, and backward does not: there each layer waits for its weights.",
            "Before `layers[l].backward` begin the gather of layer l - 1.",
        ),
        by_fault(
            "serial in disguise",
            "blocking",
            "The next layer's gather begins early, and this layer waits for it: serial in disguise.",
            "Keep the handle; wait when the next layer's turn comes.",
        ),
        common.by_line(
            "all at once",
            layers.gathers_all_first,
            "All gathers leave at the start: everything is hidden, and the whole model is on every rank.",
            "One layer ahead: begin gather l + 1 when layer l has its weights, no earlier.",
        ),
        common.by_line(
            "far ahead",
            _far_ahead,
            "More than one layer is fetched ahead: this one's weights, the next one's, and those of a third.",
            "Begin gather l + 1 when layer l has its weights, and no other.",
        ),
        common.by_line(
            "never frees",
            layers.over_in(1, FORWARD),
            "More than two layers' weights are there: what was computed with is not let go.",
            "Keep one name for the layer in use and one for the next; no list of gathered arrays.",
        ),
        common.by_line(
            "never frees in backward",
            layers.over_in(1, BACKWARD),
            "Backward holds more than two layers' weights and two gradients.",
            "Reduce-scatter each gradient at once, and let weights go when their layer is done.",
        ),
        gathering.kept_meanwhile(ahead=1),
        common.OVER_BUDGET,
    ),
)
