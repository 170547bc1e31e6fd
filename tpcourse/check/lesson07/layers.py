"""What the exercises on layers share: five layers, one device's answer, what may be held at each moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tpcourse.check.compare import Named
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson07 import common
from tpcourse.check.lesson07.common import BYTES, Inputs
from tpcourse.check.lesson07.plain import backward, cut, forward, piece_size
from tpcourse.check.lesson07.recipe import Made
from tpcourse.check.spec import group_sizes, nonzero

D = 6
MORE = (0, 1, 2, -1, 3, 1)
"""How much wider than x, and than every layer's output, is: no two layers have pieces of one length."""
L = len(MORE) - 1
EXAMPLES = 2
FORWARD, BACKWARD = "forward", "backward"
ORDER = [(FORWARD, number) for number in range(L)] + [(BACKWARD, number) for number in reversed(range(L))]


@dataclass(frozen=True)
class Stack:
    """The layers of a case: p ranks, x of width D."""

    p: int
    D: int

    @property
    def widths(self) -> list[int]:
        """Of x, and of every layer's output."""
        return [self.D + more for more in MORE]

    @property
    def sizes(self) -> list[int]:
        """P of every layer."""
        return [outputs * (inputs + 1) for inputs, outputs in pairwise(self.widths)]

    @property
    def wholes(self) -> list[int]:
        """P of every layer with its padding."""
        return [self.p * piece_size(size, self.p) for size in self.sizes]


def stack(case: Case) -> Stack:
    """That of a case."""
    return Stack(case.p, case.sizes["D"])


@dataclass
class Moment:
    """What a rank had done when a layer began: `gathers` (elements of the piece, asynchronous, waited for), `scattered`
    elements of the arrays in reduce-scatters, and the bytes that it held of what it had made, also by storage.
    """

    kind: str
    number: int
    gathers: tuple[tuple[int, bool, bool], ...]
    scattered: tuple[int, ...]
    held: int = 0
    storages: tuple[int, ...] = ()

    def gathers_of(self, number: int, of: Stack) -> list[tuple[int, bool, bool]]:
        """Those of one layer."""
        return [gather for gather in self.gathers if gather[0] * of.p == of.wholes[number]]


def cases(world_size: int) -> list[Case]:
    """The same layers in each group."""
    return [common.dp_case(p, world_size, L=L, D=D) for p in group_sizes(world_size)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Pieces of equal layers, each rank's own examples."""
    widths = stack(case).widths
    flats = [nonzero(generator, size) / 3 for size in stack(case).sizes]
    pieces = [cut(flat, case.p) for flat in flats]
    layers = [
        Made("Layer", {"number": number, "inputs": inputs, "outputs": outputs})
        for number, (inputs, outputs) in enumerate(pairwise(widths))
    ]
    return [
        {
            "x": nonzero(generator, EXAMPLES, widths[0]),
            "target": nonzero(generator, EXAMPLES, widths[-1]),
            "layers": layers,
            "pieces": Made("tensors", {"arrays": [own[rank] for own in pieces]}),
        }
        for rank in range(case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """This rank's y, and its piece of every layer's averaged gradient."""
    ys, gradients = through(inputs)
    return named(ys, [np.mean(own, axis=0) for own in zip(*gradients, strict=True)])


def named(ys: list[np.ndarray], gradients: list[np.ndarray]) -> list[Any]:
    """The results of all ranks from whole gradients of all layers."""
    pieces = [cut(gradient, len(ys)) for gradient in gradients]
    return [
        Named({"y": y, **{f"the gradient of layer {number}": own[rank] for number, own in enumerate(pieces)}})
        for rank, y in enumerate(ys)
    ]


def through(inputs: Inputs) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Each rank's y, and its own gradients of all layers."""
    flats = [
        np.concatenate([given["pieces"]["arrays"][number] for given in inputs])[:size]
        for number, size in enumerate(Stack(len(inputs), inputs[0]["x"].shape[1]).sizes)
    ]
    found = [_one_rank(given, flats) for given in inputs]
    return [y for y, _ in found], [gradients for _, gradients in found]


def _one_rank(given: dict[str, Any], flats: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    xs = [given["x"]]
    for flat in flats:
        xs.append(forward(xs[-1], flat))
    y, dy = xs[-1], xs[-1] - given["target"]
    gradients: list[np.ndarray] = []
    for x, flat in zip(reversed(xs[:-1]), reversed(flats), strict=True):
        dy, dflat = backward(x, flat, dy)
        gradients.insert(0, dflat)
    return y, gradients


def calls(case: Case) -> dict[str, list[int]]:
    """Two gathers and a reduce-scatter of every layer."""
    wholes = [BYTES * whole for whole in stack(case).wholes]
    return {"all_gather": 2 * wholes, "reduce_scatter": wholes}


def least(case: Case) -> int:
    """What a rank sends at least: its pieces once, its part of the gradients."""
    return 2 * (case.p - 1) * BYTES * sum(stack(case).sizes) // case.p


def moments(evidence: Evidence, rank: int) -> list[Moment]:
    """All moments of a rank."""
    return evidence.outcomes[rank].facts.get("moments", [])


def allowed(moment: Moment, of: Stack, ahead: int) -> int:
    """Bytes of activations and finished pieces at this moment, `ahead` + 1 layers' weights, and in backward two whole
    gradients of a layer.
    """
    wholes = of.wholes
    is_forward = moment.kind == FORWARD
    widths = of.widths[1 : moment.number + 1] if is_forward else of.widths[1:]
    activations = EXAMPLES * (sum(widths) + 2 * max(of.widths))
    following = moment.number + (1 if is_forward else -1)
    weights = wholes[moment.number] + (ahead and wholes[min(L - 1, max(0, following))])
    gradients = 0 if is_forward else 2 * max(wholes) + sum(moment.scattered) // of.p
    return BYTES * (activations + weights + gradients)


def over(ahead: int) -> Callable[[Evidence, int], str]:
    """What is held too much on a rank, the first time."""

    def text(evidence: Evidence, rank: int) -> str:
        found = moments(evidence, rank)
        if [(moment.kind, moment.number) for moment in found] != ORDER:
            return "calls the layers in another order than once forward, once backward"
        for moment in found:
            most = allowed(moment, stack(evidence.case), ahead)
            if moment.held > most:
                where = f"when layer {moment.number} begins its {moment.kind}"
                return f"holds {moment.held:,} bytes {where}, the budget is {most:,}"
        if (num := len(found[-1].gathers)) < 2 * L - 1:
            return f"gathers {num} times and uses {2 * L} layers: weights are kept where nobody counts them"
        return ""

    return text


def over_in(ahead: int, kind: str) -> Callable[[Evidence, int], bool]:
    """Whether a rank holds too much when some layer begins its forward, or its backward."""
    return lambda evidence, rank: any(
        moment.held > allowed(moment, stack(evidence.case), ahead)
        for moment in moments(evidence, rank)
        if moment.kind == kind
    )


def num_gathers(evidence: Evidence) -> int:
    """How many rank 0 calls."""
    return common.calls_of(evidence, "all_gather")


def gathers_all_first(evidence: Evidence, rank: int) -> bool:
    """Whether every layer's gather had begun when the first layer began."""
    return bool(found := moments(evidence, rank)) and len(found[0].gathers) >= L


def scatters_last(evidence: Evidence, rank: int) -> bool:
    """Whether no gradient was on its way when the last layer of backward began."""
    return bool(found := moments(evidence, rank)) and not found[-1].scattered
