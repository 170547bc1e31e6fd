"""Exercise `scattered_gradients(weights, dp)`: average into this rank's piece, and let the whole gradient go."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson07 import common
from tpcourse.check.lesson07.common import BYTES, Inputs
from tpcourse.check.lesson07.plain import cut, piece_size
from tpcourse.check.lesson07.recipe import Made
from tpcourse.check.report import Line
from tpcourse.check.spec import Exercise, group_sizes, nonzero
from tpcourse.dims import split_sizes

SHAPES = ((3, 2), (3,), (4, 3), (2,))
"""With the last one five weights: the number of weights is that of no group's ranks."""
NUM_BEFORE = sum(int(np.prod(shape)) for shape in SHAPES)
SIZES = {2: 25, 3: 26, 4: 29}
NOT_REACHED = 1
"""The weight that backward has not reached."""
Arrays = list[np.ndarray]


def shapes(P: int) -> list[tuple[int, ...]]:
    """Those of all weights: the last one is what the others leave of P."""
    return [*SHAPES, (P - NUM_BEFORE,)]


def cases(world_size: int) -> list[Case]:
    """p divides P nowhere."""
    return [common.dp_case(p, world_size, P=SIZES[p]) for p in group_sizes(world_size)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Equal weights, each rank's own gradients, one weight without."""
    weights = [nonzero(generator, *shape) for shape in shapes(case.sizes["P"])]
    inputs = []
    for _ in range(case.p):
        gradients: list[Any] = [nonzero(generator, *shape) for shape in shapes(case.sizes["P"])]
        gradients[NOT_REACHED] = None
        inputs.append({"weights": Made("parameters", {"weights": weights, "gradients": gradients})})
    return inputs


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """Piece r of the average, with zeros in the padding."""
    return cut(np.mean([_flat(given) for given in inputs], axis=0), case.p)


def budget(case: Case, inputs: Inputs) -> Budget:
    """One reduce-scatter."""
    P, p = case.sizes["P"], case.p
    whole = BYTES * p * piece_size(P, p)
    return common.rules({"reduce_scatter": [whole]}, least=(p - 1) * BYTES * P // p)


def bytes_held(cases: list[Evidence]) -> Line:
    """What is there when the answer has returned: the piece."""
    return common.held_line(cases, _over, "ceil(P/p) elements when the function has returned: the piece, no more")


def _most(evidence: Evidence) -> int:
    return BYTES * piece_size(evidence.case.sizes["P"], evidence.p)


def _held(evidence: Evidence, rank: int, name: str) -> int:
    return evidence.outcomes[rank].facts.get(name, 0)


def _over(evidence: Evidence, rank: int) -> str:
    held = _held(evidence, rank, "gradients") + _held(evidence, rank, "made")
    return f"holds {held:,} bytes of gradients at the end, the budget is {_most(evidence):,}" * (held > _most(evidence))


def _all(given: dict[str, Any], zeros: bool = True) -> Arrays:
    """A rank's gradients flat, with zeros for the one that is missing, or without it."""
    pairs = zip(given["weights"]["weights"], given["weights"]["gradients"], strict=True)
    found = [np.zeros_like(weight) if gradient is None and zeros else gradient for weight, gradient in pairs]
    return [gradient.ravel() for gradient in found if gradient is not None]


def _flat(given: dict[str, Any], zeros: bool = True) -> np.ndarray:
    return np.concatenate(_all(given, zeros))


def _mean(evidence: Evidence, zeros: bool = True) -> np.ndarray:
    return np.mean([_flat(given, zeros) for given in evidence.inputs], axis=0)


def _each_on_its_own(evidence: Evidence) -> Arrays:
    """Piece r of every weight, one after the other."""
    rows = [_all(given) for given in evidence.inputs]
    pieces = [cut(np.mean(parts, axis=0), evidence.p) for parts in zip(*rows, strict=True)]
    return [np.concatenate(own) for own in zip(*pieces, strict=True)]


def _even(evidence: Evidence) -> Arrays:
    """Pieces whose lengths differ by at most one, as `tensor_split` cuts."""
    mean = _mean(evidence)
    return np.split(mean, np.cumsum(split_sizes(len(mean), evidence.p))[:-1])


def _without_rest(evidence: Evidence) -> Arrays:
    mean, p = _mean(evidence), evidence.p
    return list(mean[: len(mean) // p * p].reshape(p, -1))


def _own(evidence: Evidence) -> Arrays:
    return [cut(_flat(given), evidence.p)[rank] for rank, given in enumerate(evidence.inputs)]


EXERCISE = Exercise(
    name="scattered_gradients",
    values="rank r returns piece r of the averaged gradients, with zeros behind the last of them",
    communication="one reduce_scatter, (p-1)/p of the elements",
    cases=cases,
    free=("P",),
    make=make,
    expected=expected,
    budget=budget,
    third=bytes_held,
    probe="lesson07.rank_scattered_gradients",
    imports=common.SLOW,
    misconceptions=(
        *common.FIRST,
        common.by_playing(
            "sum for mean",
            "The piece is p times too large: a reduce-scatter adds, and the gradient of the whole batch is a mean.",
            "Divide by p, the array before or the piece after.",
            common.scaled(lambda evidence: evidence.p),
        ),
        common.by_playing(
            "skips a weight",
            "A weight without gradient was left out, and everything behind it moved up: the pieces no longer lie where "
            "the weights do.",
            "`grad` is None where backward did not come by: put zeros of the weight's size there.",
            lambda e: cut(_mean(e, zeros=False), e.p),
        ),
        common.by_playing(
            "each on its own",
            "Every weight was cut on its own: the pieces are others, each with its own padding, and there is a call "
            "for each weight.",
            "Lay all gradients end to end first, pad once, cut once.",
            _each_on_its_own,
        ),
        common.by_playing(
            "even pieces",
            "The pieces are as even as possible, and the padding is nowhere: some ranks have an element less, and all "
            "that follow begin elsewhere.",
            "Piece r is elements r n to (r+1) n - 1 with n = ceil(P/p); only the last ones have padding.",
            _even,
        ),
        common.by_playing(
            "drops the rest",
            "The last P % p gradients are on no rank: P // p for each leaves a rest.",
            "n = ceil(P/p), which is `-(-P // p)`, and zeros behind the last gradient up to p n.",
            _without_rest,
        ),
        common.by_playing(
            "not summed",
            "Each rank returns its piece of its own gradient: the other ranks' examples are not in it.",
            "A reduce-scatter adds all ranks' arrays, and hands each its piece of the sum.",
            _own,
        ),
        common.over_with(
            "all-reduce kept",
            "all_reduce",
            "The all-reduce of stage 1 is still there: every rank gets the whole average, pays twice the bytes for "
            "it, and keeps 1/p.",
            "`reduce_scatter(flat, group=dp)` of `tpcourse.wire` is the first half of an all-reduce, and all that is "
            "needed.",
        ),
        common.by_line(
            "gradients kept",
            lambda evidence, rank: _held(evidence, rank, "gradients") > 0,
            "The whole gradient is still alive: a name keeps its memory, and `w.grad` is a name. Zeros take as much "
            "room as numbers.",
            "`w.grad = None` for every weight, once its gradient is in the flat array.",
        ),
        common.by_line(
            "a view",
            lambda evidence, rank: _held(evidence, rank, "own") > _most(evidence),
            "The piece is small, and the array under it is not: a slice keeps the memory of all that it was cut from.",
            "Receive the piece into a tensor of its own, or `clone()` the slice.",
        ),
        common.by_line(
            "flat array kept",
            lambda evidence, rank: _held(evidence, rank, "made") > _most(evidence),
            "The piece has memory of its own, and the array that it came from is there as well: a name outside of the "
            "function, or a list, keeps it.",
            "Give the flat array no other name than a local one.",
        ),
        common.OVER_BUDGET,
    ),
)
