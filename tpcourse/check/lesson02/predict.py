"""Exercise `predict(measured, wanted)`: a line for each operation, times at sizes that nobody measured, then a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from tpcourse.check.calculation import Calculation, Mistake, Trial, near, shown
from tpcourse.check.report import BLOCKED, FAILED, PASSED, Line
from tpcourse.costs.fitting import every_other, fit_each, least_squares, median_error
from tpcourse.costs.measured import Measurement

Points = Sequence[tuple[str, int, float]]
Wanted = Sequence[tuple[str, int]]
LIMITS = {"gloo": 0.35, "nccl": 0.15}  # median relative error against a run
FIRST = {"gloo": 4096, "nccl": 1 << 20}  # bytes of the smallest array
TRIES, REPEATS = 3, 9
OPS = ("all_reduce", "all_gather", "reduce_scatter")


def cases(generator: np.random.Generator) -> list[tuple[Points, Wanted]]:
    """Exact lines that differ by operation; sizes between the measured ones, and beyond them."""
    found: list[tuple[Points, Wanted]] = []
    for _ in range(2):
        lines = {op: (generator.uniform(0.5e-4, 4e-4), generator.uniform(0.5e-9, 4e-9)) for op in OPS}
        sizes = [4096 * 4**step for step in range(6)]
        points = [(op, n, alpha + beta * n) for n in sizes for op, (alpha, beta) in lines.items()]
        wanted = [(op, int(n * factor)) for n in sizes for factor, op in zip((1.9, 2.2, 2.6), OPS, strict=True)]
        found.append((points, [wanted[i] for i in generator.permutation(len(wanted))]))
    return found


def right_answer(measured: Points, wanted: Wanted) -> list[float]:
    """Each operation's own line."""
    lines = {op: least_squares(*_of(measured, op)) for op in {op for op, _, _ in measured}}
    return [lines[op][0] + lines[op][1] * n for op, n in wanted]


def _of(measured: Points, op: str | None = None) -> tuple[list[int], list[float]]:
    rows = [(n, t) for name, n, t in measured if op in (None, name)]
    return [n for n, _ in rows], [t for _, t in rows]


def fault(result: object, measured: Points, wanted: Wanted) -> str:
    """Right to six digits, or the first prediction that is not."""
    right = right_answer(measured, wanted)
    if not isinstance(result, tuple | list | np.ndarray) or len(result) != len(wanted):
        return f"gives {shown(result)}; a list of {len(wanted)} times was expected, one for each entry of wanted"
    wrong = [i for i in range(len(wanted)) if not near(result[i], right[i])]
    if not wrong:
        return ""
    i = wrong[0]
    what = f"{wanted[i][0]} of {wanted[i][1]:,} bytes"
    return f"predicts {shown(result[i])} s for {what}; its line says {shown(right[i])} s"


def _one_line(measured: Points, wanted: Wanted) -> list[float]:
    alpha, beta = least_squares(*_of(measured))
    return [alpha + beta * n for _, n in wanted]


def _no_alpha(measured: Points, wanted: Wanted) -> list[float]:
    largest = {op: max((n, t) for name, n, t in measured if name == op) for op in OPS}
    return [n * largest[op][1] / largest[op][0] for op, n in wanted]


def _slope_only(measured: Points, wanted: Wanted) -> list[float]:
    return [least_squares(*_of(measured, op))[1] * n for op, n in wanted]


def _nearest(measured: Points, wanted: Wanted) -> list[float]:
    return [min((abs(n - m), t) for name, m, t in measured if name == op)[1] for op, n in wanted]


def _between(measured: Points, wanted: Wanted) -> list[float]:
    return [float(np.interp(n, *_of(measured, op))) for op, n in wanted]


def _other_order(trial: Trial) -> bool:
    right = right_answer(*trial.arguments)
    result = trial.result
    same_length = isinstance(result, tuple | list | np.ndarray) and len(result) == len(right)
    return same_length and near(sorted(map(float, result)), sorted(right))


def on_ranks(ranks: Any, answer: Callable[..., Any]) -> Line:
    """Measure; give the answer every other size; hold its predictions for the rest against the run.

    An unsteady machine is measured again, at most three times. If the course's own lines fail there as well, the axis
    is blocked, not failed.
    """
    limit, found = LIMITS[ranks.backend], (0.0, 0.0)
    for _ in range(TRIES):
        seen, unseen = measure(ranks)
        asked = [(m.op, m.num_bytes, m.seconds) for m in seen], [(m.op, m.num_bytes) for m in unseen]
        try:
            found = _error(answer(*asked), unseen), median_error(fit_each(seen), unseen)
        except Exception as error:  # whatever it raises is a wrong answer
            return Line("this machine", FAILED, f"raised {type(error).__name__}: {error}")
        if found[0] <= limit:
            return Line("this machine", PASSED, "a run at sizes that were left out agrees with the predictions")
    if found[1] > limit:
        return Line("this machine", BLOCKED, "times vary too much here just now to hold a prediction against them")
    text = f"half of the predictions are off by {found[0]:.0%} or more; the limit is {limit:.0%}"
    return Line("this machine", FAILED, text)


def _error(predicted: Sequence[float], unseen: Sequence[Measurement]) -> float:
    return median(abs(float(t) / m.seconds - 1) for t, m in zip(predicted, unseen, strict=True))


def measure(ranks: Any) -> tuple[list[Measurement], list[Measurement]]:
    """Times of the three collectives on these ranks, all sizes in one run: those to fit, and those left out."""
    from tpcourse.ranks.timing import time_collectives

    sizes = [FIRST[ranks.backend] * 2**step for step in range(9)]
    return every_other(ranks.run(time_collectives, sizes, repeats=REPEATS)[0])


EXERCISE = Calculation(
    name="predict",
    values="each operation is predicted by its own line, in the order that was asked, also beyond the largest size",
    arguments=("measured", "wanted"),
    cases=cases,
    fault=fault,
    own="tpcourse.costs.fitting",
    mistakes=(
        Mistake(
            "The times are right and in another order than they were asked for.",
            "Go through `wanted` and append one time for each entry.",
            shows=_other_order,
        ),
        Mistake(
            "One line was fitted to all operations together, and predicts none of them.",
            "An all-reduce sends twice what an all-gather sends: fit each operation's measurements by themselves.",
            gives=_one_line,
        ),
        Mistake(
            "The time is taken to be proportional to the size: a small message would cost next to nothing.",
            "t = alpha + beta n has two terms; the first is most of the time of a small message.",
            gives=_no_alpha,
        ),
        Mistake(
            "alpha is missing: each prediction is its line's beta n, and too small by the start-up.",
            "Add the alpha of the operation's line to beta n.",
            gives=_slope_only,
        ),
        Mistake(
            "Each prediction is the time of the nearest size that was measured.",
            "Use the line: alpha + beta n at the size that is asked for.",
            gives=_nearest,
        ),
        Mistake(
            "Between measured sizes this is right; beyond the largest it repeats the last time.",
            "`numpy.interp` does not go beyond its points. A line does.",
            gives=_between,
        ),
    ),
    on_ranks=on_ranks,
)
