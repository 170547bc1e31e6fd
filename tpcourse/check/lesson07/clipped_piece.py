"""Exercise `clipped_piece(piece, P, max_norm, dp)`: the norm of a gradient of which every rank has a piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.compare import Named
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson07 import common
from tpcourse.check.lesson07.common import BYTES, Inputs
from tpcourse.check.lesson07.plain import piece_size, real_size
from tpcourse.check.misconceptions import Finding, Misconception
from tpcourse.check.spec import Exercise, group_sizes, nonzero

SIZES = {2: 7, 3: 10, 4: 9}
LIMIT = "max_norm / norm"
TORCHS = 1e-6
"""What torch adds to the norm before it divides by it."""
Norms = list[float]


def cases(world_size: int) -> list[Case]:
    """Padding everywhere; then a gradient below the limit, and one so short that a rank begins behind its end."""
    ps = group_sizes(world_size)
    half: dict[str, Any] = {LIMIT: 0.5}
    found = [common.dp_case(p, world_size, P=SIZES[p], **half) for p in ps]
    found += [common.dp_case(ps[-1], world_size, P=ps[-1] + 1, edge=True, **half)]
    return [*found, common.dp_case(ps[0], world_size, P=SIZES[ps[0]], **{**half, LIMIT: 2})]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Pieces with anything in the padding: large numbers, infinity, and NaN where the gradient is below the limit."""
    P, p = case.sizes["P"], case.p
    n = piece_size(P, p)
    flat = nonzero(generator, p * n)
    flat[P:] *= np.nan if case.sizes[LIMIT] > 1 else np.inf if p == 3 and not case.edge else 5
    limit = np.linalg.norm(flat[:P]) * case.sizes[LIMIT]
    return [{"piece": piece, "P": P, "max_norm": float(limit)} for piece in flat.reshape(p, n)]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """The norm of all P elements, and each piece, with zeros for whatever is in the padding."""
    norm = np.sqrt(sum((part**2).sum() for part in _parts(inputs)))
    return _results(inputs, [norm] * case.p)


def budget(case: Case, inputs: Inputs) -> Budget:
    """One number."""
    return common.rules({"all_reduce": [BYTES]}, least=BYTES)


def _parts(inputs: Inputs) -> list[np.ndarray]:
    p = len(inputs)
    return [given["piece"][: real_size(given["P"], p, rank)] for rank, given in enumerate(inputs)]


def _pieces(inputs: Inputs) -> list[np.ndarray]:
    """With zeros in the padding."""
    n = len(inputs[0]["piece"])
    return [np.pad(part, (0, n - len(part))) for part in _parts(inputs)]


def _results(inputs: Inputs, norms: Norms, least: float = 1.0) -> list[Any]:
    """Each rank's norm and piece, with zeros in the padding; a factor above `least` does not change the piece."""
    factors = [given["max_norm"] / norm if norm else 1.0 for given, norm in zip(inputs, norms, strict=True)]
    pairs = zip(norms, _pieces(inputs), factors, strict=True)
    return [Named({"the norm": np.asarray(a), "the piece": min(least, c) * piece}) for a, piece, c in pairs]


def _norms(of: Callable[[list[np.ndarray]], Norms], padding: bool = False) -> Callable[[Evidence], list[Any]]:
    """What ranks return if they compute their norms like this from the parts that are no padding, or from all."""

    def way(evidence: Evidence) -> list[Any]:
        inputs = evidence.inputs
        return _results(inputs, of([given["piece"] for given in inputs] if padding else _parts(inputs)))

    return way


def _negative(evidence: Evidence) -> list[Any]:
    """`piece[:P - r n]` where P - r n is negative."""
    inputs, n = evidence.inputs, len(evidence.inputs[0]["piece"])
    parts = [given["piece"][: given["P"] - rank * n] for rank, given in enumerate(inputs)]
    return _results(inputs, _everywhere(np.linalg.norm)(parts))


def _everywhere(of: Callable[[np.ndarray], Any]) -> Callable[[list[np.ndarray]], Norms]:
    return lambda parts: [float(of(common.joined(parts)))] * len(parts)


def _own(parts: list[np.ndarray]) -> Norms:
    return [float(np.linalg.norm(part)) for part in parts]


def _unclipped(evidence: Evidence) -> list[Any]:
    """The right norm, and the piece as it was."""
    pairs = zip(evidence.expected, _pieces(evidence.inputs), strict=True)
    return [[norm, piece] for (norm, _), piece in pairs]


def _scaled_up(evidence: Evidence) -> list[Any]:
    norms = [float(norm) for norm, _ in evidence.expected]
    return _results(evidence.inputs, norms, least=np.inf)


def _as_torch(evidence: Evidence) -> list[Any]:
    """The factor of `torch.nn.utils.clip_grad_norm_`."""
    row = [float(norm) + TORCHS for norm, _ in evidence.expected]
    pairs = zip(evidence.expected, _results(evidence.inputs, row), strict=True)
    return [[norm, piece] for (norm, _), (_, piece) in pairs]


def _outputs(finding: Finding) -> list[list[Any]]:
    """Norm and piece of each rank that returned both."""
    outputs = finding.evidence.outputs if finding.evidence.finished else []
    return [output for output in outputs if isinstance(output, list) and len(output) == 2]


def _not_a_number(finding: Finding) -> bool:
    return any(isinstance(norm, np.ndarray) and np.isnan(norm).any() for norm, _ in _outputs(finding))


def _cut_off(finding: Finding) -> bool:
    n = len(finding.evidence.inputs[0]["piece"])
    return any(isinstance(piece, np.ndarray) and piece.ndim == 1 and len(piece) < n for _, piece in _outputs(finding))


def _swapped(finding: Finding) -> bool:
    """[n] where a number belongs, and a number where [n] does."""
    pairs = [pair for pair in _outputs(finding) if all(isinstance(result, np.ndarray) for result in pair)]
    return bool(pairs) and all((norm.ndim, piece.ndim) == (1, 0) for norm, piece in pairs)


def _skips(finding: Finding) -> bool:
    """A rank with nothing but padding made fewer calls than the others."""
    evidence = finding.evidence
    counts = [len(outcome.events) for outcome in evidence.outcomes]
    empty = [not part.size for part in _parts(evidence.inputs)]
    return not evidence.finished and any(no and n < max(counts) for no, n in zip(empty, counts, strict=True))


EXERCISE = Exercise(
    name="clipped_piece",
    values="every rank returns one device's norm, and its piece scaled as one device scales it",
    communication="one all_reduce of one number",
    cases=cases,
    free=("P",),
    make=make,
    expected=expected,
    budget=budget,
    may_change=("piece",),
    probe="lesson07.rank_clipped_piece",
    misconceptions=(
        *common.FIRST,
        Misconception(
            "skips",
            _skips,
            "A rank without gradients leaves out its call, and the others wait for it.",
            "Every rank makes the same calls, also with nothing to give: the sum over no squares is zero.",
        ),
        common.by_playing(
            "padding counts",
            "The padding enters the norm: what lies behind the last gradient is nobody's, and it was squared too.",
            "Of piece r only the first P - r n elements are gradients. Square those.",
            _norms(_everywhere(np.linalg.norm), padding=True),
        ),
        common.by_playing(
            "negative length",
            "A rank that begins behind the end counts padding: P - r n is negative there, and `piece[:-1]` is all but "
            "one element, not none.",
            "`max(0, P - r * n)` elements are gradients.",
            _negative,
        ),
        common.by_playing(
            "not summed",
            "Each rank takes the norm of its own piece: ranks clip by different factors, and no factor is one "
            "device's.",
            "Add up the squares over `dp`, then take the root.",
            _norms(_own),
            _norms(_own, padding=True),
        ),
        common.by_playing(
            "norms added",
            "Norms are added up: a norm is the root of a sum, and roots do not add up.",
            "Add up squares over ranks. One root at the very end.",
            _norms(lambda parts: [sum(_own(parts))] * len(parts)),
        ),
        common.by_playing(
            "averaged",
            "Squares are averaged over ranks: the pieces are different elements, and each counts whole.",
            "The gradients were averaged when they were scattered. Add up, and do not divide by p.",
            _norms(lambda parts: [float(np.linalg.norm(common.joined(parts))) / len(parts) ** 0.5] * len(parts)),
        ),
        common.by_playing(
            "scaled up",
            "A gradient below the limit is scaled up to it: clipping only ever makes it smaller.",
            "The factor is min(1, max_norm / norm).",
            _scaled_up,
        ),
        common.by_playing(
            "as torch",
            "The factor is torch's, max_norm / (norm + 1e-6), and the task's has no 1e-6: all else is right.",
            "Divide by the norm itself; torch guards against a norm of 0.",
            _as_torch,
        ),
        common.by_playing(
            "not clipped",
            "The norm is right, and the piece is as it was.",
            "Multiply the piece by min(1, max_norm / norm).",
            _unclipped,
        ),
        Misconception(
            "masked",
            _not_a_number,
            "The padding is multiplied by zero and not left out: NaN times 0 is NaN, and so is infinity times 0.",
            "Square a slice, `piece[:m]`, or choose by `torch.where`.",
        ),
        Misconception(
            "swapped",
            _swapped,
            "Piece and norm come back in the other order than the task names them in.",
            "First the norm, a tensor `[]`, then the piece, `[n]`.",
        ),
        Misconception(
            "cut off",
            _cut_off,
            "The piece is shorter than the one that was given: the norm needs the gradients alone, and the caller a "
            "piece of [n].",
            "Multiply the whole piece; what you leave in the padding does not matter.",
        ),
        Misconception(
            "gathers",
            lambda f: f.evidence.right and f.fault_kind in ("bytes", "operation", "calls"),
            "The norm is right, and more travels than one number: squares can be added up on the rank first.",
            "One number for this rank's piece, then one all-reduce.",
        ),
    ),
)
