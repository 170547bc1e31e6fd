"""Exercise `enter_and_leave(x, norm, group)`: to this rank's tokens and back, each with its backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.compare import Named
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson06.common import (
    AVERAGED,
    FIRST,
    OVER_BUDGET,
    by_result,
    double_bytes,
    gives,
    no_backward,
    rules,
)
from tpcourse.check.lesson06.recipe import D, Made, Shared
from tpcourse.check.misconceptions import Misconception, by_fault, by_outputs
from tpcourse.check.report import FAILED, PASSED, Line
from tpcourse.check.spec import Exercise, group_sizes, nonzero, one_group

Inputs = list[dict[str, Any]]
HELD = "bytes held"
PIECE, Y, DX = range(3)
SIZES = {2: (4, 6), 3: (3, 12), 4: (4, 12)}


def cases(world_size: int) -> list[Case]:
    """p divides the tokens, and the sequences too: a cut in the wrong dim is not stopped by a length."""
    return [one_group(p, world_size, B=SIZES[p][0], T=SIZES[p][1], D=D) for p in group_sizes(world_size)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """x, dy and the norm are the same on every rank."""
    shape = [case.sizes[name] for name in "BTD"]
    x, dy = Shared(nonzero(generator, *shape)), Shared(nonzero(generator, *shape))
    norm = Made("Norm", {"scale": nonzero(generator, D)})
    return [{"x": x, "norm": norm, "dy": dy} for _ in range(case.p)]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """This rank's tokens reach the norm; y and dx are whole on every rank."""
    y, dx = _one_device(inputs)
    pieces = np.split(inputs[0]["x"].array, case.p, axis=1)
    return [Named({"the norm's input": piece, "y": y, "dx": dx}) for piece in pieces]


def budget(case: Case, inputs: Inputs) -> Budget:
    """One all-gather each way."""
    return Budget(judge=rules({"all_gather": (2, inputs[0]["x"].array.nbytes)}))


def bytes_held(cases: list[Evidence]) -> Line:
    """What the norm's input keeps alive until backward: this rank's tokens, or all that it is a slice of."""
    for evidence in reversed(cases):
        most = evidence.inputs[0]["x"].array.nbytes // evidence.p
        for rank, outcome in enumerate(evidence.outcomes):
            if (kept := outcome.facts.get("held", 0)) > most:
                text = f"what `norm` got on rank {rank} is a slice of {kept:,} bytes, the budget is {most:,}"
                return Line(HELD, FAILED, f"{text} (at {evidence.case})")
    return Line(HELD, PASSED, "the norm's input is this rank's tokens, in memory of their own")


def _one_device(inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    import torch

    from tpcourse.check.lesson06.nets import Norm

    given = inputs[0]
    x = torch.from_numpy(given["x"].array.copy()).requires_grad_()
    y = Norm(given["norm"].weights)(x)
    y.backward(torch.from_numpy(given["dy"].array.copy()))
    assert x.grad is not None
    return y.detach().numpy(), x.grad.numpy()


def _x(evidence: Evidence) -> np.ndarray:
    return evidence.inputs[0]["x"].array


def _first(evidence: Evidence) -> list[np.ndarray]:
    return [np.split(_x(evidence), evidence.p, axis=1)[0]] * evidence.p


def _sequences(evidence: Evidence) -> list[np.ndarray]:
    return np.split(_x(evidence), evidence.p, axis=0)


def _dealt(evidence: Evidence) -> list[np.ndarray]:
    return [_x(evidence)[:, rank :: evidence.p] for rank in range(evidence.p)]


def _stacked(evidence: Evidence, index: int) -> list[np.ndarray]:
    """Pieces joined along dim 0 and read as [B, T, D]."""
    whole = evidence.expected[0][index]
    return [np.concatenate(np.split(whole, evidence.p, axis=1)).reshape(whole.shape)] * evidence.p


def _averaged(evidence: Evidence, index: int) -> list[np.ndarray]:
    return [expected[index] / evidence.p for expected in evidence.expected]


def _own_only(evidence: Evidence) -> list[Any]:
    """dx is there for this rank's tokens, and zero elsewhere."""
    found = []
    for rank, (piece, y, dx) in enumerate(evidence.expected):
        rows = np.split(np.zeros_like(dx), evidence.p, axis=1)
        rows[rank] = np.split(dx, evidence.p, axis=1)[rank]
        found.append([piece, y, np.concatenate(rows, axis=1)])
    return found


EXERCISE = Exercise(
    name="enter_and_leave",
    values="the norm gets this rank's T/p tokens; y and dx are those of one device, whole on every rank",
    communication="one all_gather forward and one backward, (p-1)/p n bytes each",
    cases=cases,
    free=("B", "T"),
    make=make,
    expected=expected,
    budget=budget,
    third=bytes_held,
    probe="lesson06.rank_enter_and_leave",
    misconceptions=(
        *FIRST,
        by_result(
            "batch",
            PIECE,
            _sequences,
            "Cut in the wrong dim: each rank gets B/p whole sequences, which is data parallelism.",
            "Tokens lie along dim 1 of [B, T, D].",
        ),
        by_result(
            "tiles",
            PIECE,
            _first,
            "Tiles, not shards: every rank works on the same first T/p tokens, and nobody on the others.",
            "Rank r takes piece r: `dist.get_rank(group)` counts in the group.",
        ),
        by_result(
            "dealt out",
            PIECE,
            _dealt,
            "Tokens are dealt out like cards, every p-th to a rank; a gather puts whole pieces one behind the other.",
            "Rank r takes T/p tokens in a row: `x.chunk(p, dim=1)[r]`.",
        ),
        by_outputs(
            "own tokens only",
            _own_only,
            "dx is zero but for this rank's own tokens: the backward of a slice knows nothing of the other ranks.",
            "Enter's backward gathers the ranks' pieces of the gradient, as Leave's forward does with y.",
        ),
        by_outputs(
            "summed",
            lambda e: [[piece, y, e.p * dx] for piece, y, dx in e.expected],
            "dx is p times too large: Leave's backward adds up what all ranks hold, and all hold the same gradient.",
            "Behind Leave all ranks do the same work, so each has all of dy: take piece r of it.",
        ),
        Misconception(
            "averaged",
            lambda f: any(gives(f.evidence, index, _averaged(f.evidence, index)) for index in (Y, DX)),
            "A result is p times too small: pieces were averaged, as in data parallel. No two ranks have the same "
            "token, so each counts whole.",
            AVERAGED,
        ),
        Misconception(
            "stacked",
            lambda f: any(gives(f.evidence, index, _stacked(f.evidence, index)) for index in (Y, DX)),
            "Pieces are joined along dim 0 and read as [B, T, D]: tokens of one sequence land in another.",
            "`dist.all_gather` into a list of p pieces, then `torch.cat(pieces, dim=1)`.",
        ),
        no_backward(
            Y,
            "y is right and no gradient comes back: a collective of torch.distributed is not known to autograd.",
            "Call it in the `forward` of a `torch.autograd.Function`, and say in `backward` what returns.",
        ),
        double_bytes(
            "Right, at double the bytes: an all-reduce adds zeros to every rank's piece, where a gather is enough.",
            "No two ranks have the same token, so there is nothing to add: `dist.all_gather`.",
        ),
        by_fault(
            "a slice",
            HELD,
            "The result is right, and what `norm` got is a slice of x. The norm keeps its input for backward, and a "
            "slice keeps all of x alive: p times the bytes of this rank's tokens.",
            "`.clone()` of the slice is a tensor of its own.",
        ),
        OVER_BUDGET,
    ),
)
