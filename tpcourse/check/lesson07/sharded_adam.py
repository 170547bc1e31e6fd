"""Exercise `sharded_adam(weights, gradient, steps, options, dp)`: each rank steps its piece, then gathers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget, Fault
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson07 import common
from tpcourse.check.lesson07.common import BYTES, HELD, Inputs
from tpcourse.check.lesson07.other_rules import OTHER_RULES
from tpcourse.check.lesson07.plain import Adam, least_squares, new_options, piece_size
from tpcourse.check.lesson07.recipe import Made
from tpcourse.check.misconceptions import Finding, Misconception, by_playing_all
from tpcourse.check.report import FAILED, Line
from tpcourse.check.spec import Exercise, group_sizes, nonzero

STEPS, EXAMPLES = 3, 3
SIZES = {2: 9, 3: 10, 4: 13}
Play = Callable[[Evidence], list[Any]]


def cases(world_size: int) -> list[Case]:
    """p divides P nowhere; in the last one a rank may have nothing but padding."""
    ps = group_sizes(world_size)
    found = [common.dp_case(p, world_size, P=SIZES[p], steps=STEPS) for p in ps]
    return [*found, common.dp_case(ps[-1], world_size, P=ps[-1] + 1, steps=STEPS, edge=True)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Weights and options are the same on every rank, the examples are not."""
    P, options = case.sizes["P"], new_options(generator)
    weights = Made("tensor", {"array": nonzero(generator, P)})
    return [
        {
            "weights": weights,
            "gradient": Made(
                "Gradient",
                {"rows": nonzero(generator, EXAMPLES, P), "targets": nonzero(generator, EXAMPLES)},
            ),
            "steps": case.sizes["steps"],
            "options": options,
        }
        for _ in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The weights of one device, on every rank."""
    given, adam = inputs[0], Adam.new(case.sizes["P"])
    weights = given["weights"]["array"]
    for _ in range(given["steps"]):
        weights = adam.step(weights, np.mean(_gradients(inputs, [weights] * case.p), axis=0), given["options"])
    return [weights] * case.p


def budget(case: Case, inputs: Inputs) -> Budget:
    """Each step: an all-reduce of the gradients, and an all-gather of the pieces."""
    P, p, steps = case.sizes["P"], case.p, case.sizes["steps"]
    whole = BYTES * p * piece_size(P, p)
    calls = {"all_reduce": [whole] * steps, "all_gather": [whole] * steps}
    least = steps * (2 * (p - 1) * BYTES * P // p)
    return common.rules(calls, least=least, also=("reduce_scatter",), then=_gathers)


def _gathers(evidence: Evidence) -> Fault | None:
    """The stepped pieces travel in each step."""
    steps = evidence.case.sizes["steps"]
    for rank, outcome in enumerate(evidence.outcomes):
        made = Counter(event.op for event in outcome.events)
        if made["all_gather"] < steps:
            what = f"rank {rank} calls {common.listed(made)}"
            return Fault("few gathers", f"{what}; an all_gather in each of {steps} steps is due")
    return None


def bytes_held(cases: list[Evidence]) -> Line:
    """Adam's two moments of this rank's piece, by storage."""
    for evidence in cases:
        for rank, outcome in enumerate(evidence.outcomes):
            if not outcome.facts["optimizers"]:
                return Line(HELD, FAILED, f"rank {rank} steps with no optimizer of torch (at {evidence.case})")
    return common.held_line(cases, _over, "Adam's moments of ceil(P/p) weights on each rank")


def _budget(evidence: Evidence) -> int:
    return 2 * BYTES * piece_size(evidence.case.sizes["P"], evidence.p)


def _over(evidence: Evidence, rank: int) -> str:
    held, most = evidence.outcomes[rank].facts["moments"], _budget(evidence)
    return f"holds {held:,} bytes of Adam's moments, the budget is {most:,}" if held > most else ""


def _gradients(inputs: Inputs, weights: list[np.ndarray]) -> list[np.ndarray]:
    pairs = zip(inputs, weights, strict=True)
    return [least_squares(w, given["gradient"]["rows"], given["gradient"]["targets"]) for given, w in pairs]


@dataclass(frozen=True)
class Played:
    """The algorithm, played rank by rank, with one mistake."""

    factor: Callable[[int], float] = lambda p: 1.0  # of the averaged gradient
    averages: bool = True
    gathers: str = "every step"  # or "at the end", "never"; "unseen" is at the end, with gradients at the first weights
    drops_rest: bool = False
    keeps_moments: bool = True

    def __call__(self, evidence: Evidence) -> list[Any]:
        """What the ranks return."""
        inputs, p, P = evidence.inputs, evidence.p, evidence.case.sizes["P"]
        n = P // p if self.drops_rest else piece_size(P, p)
        spans = [slice(min(P, r * n), min(P, (r + 1) * n)) for r in range(p)]
        adams = [Adam.new(P) for _ in range(p)]
        weights = [inputs[0]["weights"]["array"].copy() for _ in range(p)]
        first = [own.copy() for own in weights]
        for _ in range(inputs[0]["steps"]):
            own = _gradients(inputs, first if self.gathers == "unseen" else weights)
            self._step(inputs, own, weights, adams, spans)
        if self.gathers in ("at the end", "unseen"):
            self._gather(weights, spans)
        return weights

    def _step(
        self, inputs: Inputs, own: list[np.ndarray], weights: list[np.ndarray], adams: list[Adam], spans: list[slice]
    ) -> None:
        p = len(weights)
        for rank, span in enumerate(spans):
            gradient = np.mean(own, axis=0) if self.averages else own[rank]
            if not self.keeps_moments:
                adams[rank] = Adam.new(len(gradient))
            stepped = adams[rank].step(weights[rank], self.factor(p) * gradient, inputs[0]["options"])
            weights[rank][span] = stepped[span]
        if self.gathers == "every step":
            self._gather(weights, spans)

    @staticmethod
    def _gather(weights: list[np.ndarray], spans: list[slice]) -> None:
        for owner, span in enumerate(spans):
            for other in weights:
                other[span] = weights[owner][span]


def _stops(finding: Finding) -> bool:
    """The weights are those after one step, and pieces were gathered in all of them."""
    return any(
        evidence.finished and not _gathers(evidence) and evidence.would_give(_one_step(evidence))
        for evidence in (finding.evidence, *finding.others)
    )


def _one_step(evidence: Evidence) -> list[Any]:
    return expected(evidence.case, [{**given, "steps": 1} for given in evidence.inputs])


def _steps_all(finding: Finding) -> bool:
    """Whole moments, or more of them."""
    evidence = finding.evidence
    whole = 2 * BYTES * evidence.case.sizes["P"]
    return finding.fault_kind in (HELD, "few gathers") and any(o.facts["moments"] >= whole for o in evidence.outcomes)


EXERCISE = Exercise(
    name="sharded_adam",
    values="every rank returns one device's weights after all steps, also where p does not divide P",
    communication="in each step the gradients once, and the stepped pieces once",
    cases=cases,
    free=("P",),
    make=make,
    expected=expected,
    budget=budget,
    may_change=("weights",),
    third=bytes_held,
    probe="lesson07.rank_sharded_adam",
    imports=common.SLOW,
    misconceptions=(
        *common.FIRST,
        common.by_playing(
            "sum for mean",
            "The step is that of a gradient p times too large: gradients were added over the ranks and not averaged.",
            "Divide by p. With its usual eps of 1e-8 Adam would hide this, as it divides the gradient by its size.",
            Played(factor=lambda p: p),
        ),
        common.by_playing(
            "own gradient",
            "Each rank steps its piece with the gradient of its own examples: nobody averaged.",
            "`dist.all_reduce` the whole gradient before you cut the piece out of it: all ranks' examples count in "
            "every element.",
            Played(averages=False),
            Played(averages=False, factor=lambda p: 1 / p),
        ),
        by_playing_all(
            "divided twice",
            "The step is that of a gradient p times too small: on its way it is divided by p twice.",
            "One division makes the mean: of the sum or of each rank's share, not of both.",
            Played(factor=lambda p: 1 / p),
        ),
        common.by_playing(
            "old weights",
            "The next gradient is taken at old weights: after a step a rank has only its own piece of the new ones.",
            "Gather the pieces in every step, before `gradient` is called again.",
            Played(gathers="at the end"),
            Played(gathers="never"),
            Played(gathers="unseen"),
        ),
        common.by_playing(
            "drops the rest",
            "The last P % p weights never move: P // p for each rank leaves a rest that nobody owns.",
            "n = ceil(P/p), which is `-(-P // p)`, and zeros behind the last weight up to p n.",
            Played(drops_rest=True),
        ),
        common.by_playing(
            "new optimizer",
            "Adam forgets its moments after every step: the optimizer is made anew in each.",
            "Make the optimizer once, before the loop: its states are what this exercise is about.",
            Played(keeps_moments=False),
        ),
        *OTHER_RULES,
        Misconception(
            "stops",
            _stops,
            "The weights move once and never again: the optimizer steps the tensor that it was made with, and what "
            "is gathered behind the first step is another one.",
            "Keep one piece from the first line to the last: give it a new `grad` in each step, but no other tensor "
            "its name.",
        ),
        Misconception(
            "steps all",
            _steps_all,
            "Each rank steps all weights and holds all moments, as without ZeRO: the values are right, and nothing is "
            "saved.",
            "Give AdamW the piece alone: a tensor of [n], with a gradient of [n].",
        ),
        common.over_with(
            "all-reduced weights",
            "all_reduce",
            "The pieces come together by an all-reduce of arrays that are zero elsewhere: twice the bytes of a gather.",
            "`all_gather(piece, group=dp)` of `tpcourse.wire` lays the pieces side by side.",
        ),
        common.OVER_BUDGET,
    ),
)
