"""Exercise `reloaded_adam(read, saved, P, options, dp)`: what some ranks saved, cut anew for another number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcourse.check.budget import Budget
from tpcourse.check.compare import Named, agree
from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson07 import common
from tpcourse.check.lesson07.common import Inputs
from tpcourse.check.lesson07.files import READ, asked, files_read, needed, times_each
from tpcourse.check.lesson07.plain import Adam, cut, new_options, piece_size
from tpcourse.check.lesson07.recipe import Made
from tpcourse.check.misconceptions import Finding, Misconception, by_fault
from tpcourse.check.spec import Exercise, group_sizes, nonzero
from tpcourse.dims import split_sizes

SAVED = {2: (4, 10), 3: (4, 10), 4: (2, 7)}
"""Ranks now -> (ranks that saved, P)."""
NAMES = ("weight", "exp_avg", "exp_avg_sq")
STEPS = 3
Piece = dict[str, np.ndarray]


def cases(world_size: int) -> list[Case]:
    """No two paddings equal; in the last one the last file has nothing else."""
    found = [common.dp_case(p, world_size, P=SAVED[p][1], saved_by=SAVED[p][0]) for p in group_sizes(world_size)]
    return [*found, common.dp_case(2, world_size, P=5, saved_by=4, edge=True)]


def make(case: Case, generator: np.random.Generator) -> Inputs:
    """Files with anything in their padding, and a gradient for one step more."""
    P, saved = case.sizes["P"], case.sizes["saved_by"]
    arrays = {name: nonzero(generator, saved * piece_size(P, saved)) for name in NAMES}
    arrays["exp_avg_sq"] = np.abs(arrays["exp_avg_sq"])
    rows = {name: np.split(array, saved) for name, array in arrays.items()}
    files = [{**{name: rows[name][j] for name in NAMES}, "step": np.array(STEPS, np.float32)} for j in range(saved)]
    options, gradient = new_options(generator), nonzero(generator, P)
    return [
        {
            "read": Made("Files", {"files": files}),
            "saved": saved,
            "P": P,
            "options": options,
            "gradient": Made("tensor", {"array": own}),
        }
        for own in cut(gradient, case.p)
    ]


def expected(case: Case, inputs: Inputs) -> list[Any]:
    """This rank's piece of one device's weights and moments, and its weights after one step more."""
    P = case.sizes["P"]
    return _results(inputs, [cut(array[:P], case.p) for array in _arrays(inputs)])


def budget(case: Case, inputs: Inputs) -> Budget:
    """Nothing is sent."""
    return common.rules({})


def _files(inputs: Inputs) -> list[Piece]:
    return inputs[0]["read"]["files"]


def _arrays(inputs: Inputs) -> list[np.ndarray]:
    """Weights and moments as they were saved, padding and all."""
    return [np.concatenate([file[name] for file in _files(inputs)]) for name in NAMES]


def _results(inputs: Inputs, pieces: list[list[np.ndarray]], steps: int = STEPS) -> list[Any]:
    found = []
    for rank, (weight, m, v) in enumerate(zip(*pieces, strict=True)):
        gradient, after = inputs[rank]["gradient"]["array"], np.zeros(0)
        if len(gradient) == len(weight) == len(m) == len(v):
            after = Adam(m, v, steps).step(weight, gradient, inputs[rank]["options"])
        row = {"the piece": weight, "exp_avg": m, "exp_avg_sq": v, "the piece after one more step": after}
        found.append(Named(row))
    return found


@dataclass(frozen=True)
class Recut:
    """The results of all ranks for another way to cut weights, and moments."""

    weights: Callable[[np.ndarray, Evidence], list[np.ndarray]]
    moments: Callable[[np.ndarray, Evidence], list[np.ndarray]]
    steps: int = STEPS

    def __call__(self, evidence: Evidence) -> list[Any]:
        """What the ranks return."""
        ways = (self.weights, self.moments, self.moments)
        pieces = [way(array, evidence) for way, array in zip(ways, _arrays(evidence.inputs), strict=True)]
        return _results(evidence.inputs, pieces, self.steps)


def _right(array: np.ndarray, evidence: Evidence) -> list[np.ndarray]:
    return cut(array[: evidence.case.sizes["P"]], evidence.p)


def _with_padding(array: np.ndarray, evidence: Evidence) -> list[np.ndarray]:
    """The old padding is cut like everything else."""
    size = evidence.p * piece_size(evidence.case.sizes["P"], evidence.p)
    return cut(np.pad(array[:size], (0, max(0, size - len(array)))), evidence.p)


def _own_file(array: np.ndarray, evidence: Evidence) -> list[np.ndarray]:
    """File r for rank r, cut or padded to the length of a piece."""
    n = piece_size(evidence.case.sizes["P"], evidence.p)
    files = np.split(array, evidence.case.sizes["saved_by"])
    return [np.pad(file[:n], (0, max(0, n - len(file)))) for file in (files * evidence.p)[: evidence.p]]


def _even(array: np.ndarray, evidence: Evidence) -> list[np.ndarray]:
    P = evidence.case.sizes["P"]
    return np.split(array[:P], np.cumsum(split_sizes(P, evidence.p))[:-1])


def _result(finding: Finding, index: int) -> list[Any]:
    outputs = finding.evidence.outputs if finding.evidence.finished else []
    return [output[index] for output in outputs if isinstance(output, list) and len(output) > index]


def _no_moments(finding: Finding) -> bool:
    """The weights are right, and every moment is missing or zero."""
    rows = [*_result(finding, 1), *_result(finding, 2)]
    return bool(rows) and all(row is None or not np.any(row) for row in rows)


def _rounds_down(finding: Finding) -> bool:
    """Asks for a file that would be there if files had P // saved elements, and that is not the rank's own number."""
    case = finding.evidence.case
    P, saved = case.sizes["P"], case.sizes["saved_by"]
    n, old = piece_size(P, case.p), P // saved
    for rank, outcome in enumerate(finding.evidence.outcomes):
        last = -(-min(P, rank * n + n) // old)
        wrong = [number for number in range(rank * n // old, last) if number >= saved and number != rank]
        if any(f"there is no file {number}:" in outcome.error for number in wrong):
            return True
    return False


def _takes_own_file(finding: Finding) -> bool:
    """Rank r's piece begins with file r, whatever its length is; or it asks for a file that is not there."""
    if "there is no file" in finding.error:
        return True
    evidence, got = finding.evidence, _result(finding, 0)
    weights = [file["weight"] for file in _files(evidence.inputs) * evidence.p]
    pairs = [(piece[: len(weight)], weight[: len(piece)]) for piece, weight in zip(got, weights, strict=False)]
    return bool(pairs) and all(agree(piece, weight) for piece, weight in pairs)


EXERCISE = Exercise(
    name="reloaded_adam",
    values="weights, moments and count of steps are one device's, cut for this number of ranks; so is the next step",
    communication="nothing is sent: the files are there for every rank",
    cases=cases,
    free=("P",),
    free_step=4,
    make=make,
    expected=expected,
    budget=budget,
    third=files_read,
    probe="lesson07.rank_reloaded_adam",
    imports=common.SLOW,
    misconceptions=(
        *common.FIRST,
        Misconception(
            "moments lost",
            _no_moments,
            "The weights are there and Adam's moments are lost: the next steps are those of a new optimizer, and the "
            "loss jumps.",
            '`adam.state[piece] = {"step": ..., "exp_avg": ..., "exp_avg_sq": ...}`, each re-cut like the piece.',
        ),
        common.by_playing(
            "steps lost",
            "Weights and moments are right, and Adam counts from 0 again: it divides the old moments as if they had "
            "just begun.",
            '"step" belongs to the state too. Take it from any file.',
            Recut(_right, _right, steps=0),
        ),
        common.by_playing(
            "moments not cut",
            "The weights are cut anew and the moments are not: each moment stands beside another weight than its own.",
            "Cut all three arrays with the same two bounds.",
            Recut(_right, _own_file),
        ),
        common.by_playing(
            "padding comes along",
            "The old padding came along: it fills places behind the last weight that are to be zero here.",
            "Only the first P elements are weights. Behind them a new piece has zeros.",
            Recut(_with_padding, _with_padding),
        ),
        common.by_playing(
            "even pieces",
            "Pieces have different lengths, and this course's have one: n = ceil(P/p), with padding at the end of the "
            "last ones.",
            "Piece r is elements r n to (r+1) n - 1; zeros from P on.",
            Recut(_even, _even),
        ),
        Misconception(
            "rounds down",
            _rounds_down,
            "The old length rounds up: with P // saved elements in each, the files seem to begin too early, and there "
            "seem to be more of them than there are.",
            "A rank that saved wrote ceil(P/saved) elements, `-(-P // saved)`.",
        ),
        Misconception(
            "own file",
            _takes_own_file,
            "Rank r takes file r: that is the piece of rank r of the ranks that saved, which has another length and "
            "begins elsewhere.",
            "Element i is in file i // n of the old n, at i % n.",
        ),
        common.by_line(
            "reads again",
            lambda evidence, rank: times_each(evidence, rank) > 1,
            "Each file is read several times, and one `read(j)` brings all three arrays and the count of steps.",
            "`file = read(j)`, once, and then take out of it what you need.",
            READ,
        ),
        common.by_line(
            "reads everything",
            lambda evidence, rank: len(asked(evidence, rank)) > len(needed(evidence.case, rank)),
            "A rank reads more than it needs: with every file read on every rank the whole model and its moments pass "
            "through each one's memory.",
            "Which files overlap r n .. (r+1) n, and end before P? Read those, each once.",
            READ,
        ),
        by_fault(
            "sends",
            "bytes",
            "Ranks talk to each other: each can read what it needs itself.",
            "`read(j)` works for every j on every rank.",
        ),
    ),
)
