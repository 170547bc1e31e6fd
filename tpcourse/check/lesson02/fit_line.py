"""Exercise `fit_line(sizes, times)`: alpha and beta by least squares on relative errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tpcourse.check.calculation import Calculation, Mistake, Trial, listed, near, shown
from tpcourse.costs.fitting import least_squares

Pair = tuple[float, float]
Floats = Sequence[float]


def cases(generator: np.random.Generator) -> list[tuple[Floats, Floats]]:
    """Times exactly on a line; scattered times; scattered times with sizes that come twice, in no order."""
    alpha, beta = generator.uniform(0.5e-4, 2e-4), generator.uniform(0.5e-9, 2e-9)
    plain = [1024.0 * 4**step for step in range(7)]
    twice = [float(n) for n in generator.permutation([*plain, *plain[1:6]])]
    exact = [alpha + beta * n for n in plain]
    return [(plain, exact), *((sizes, _scattered(generator, sizes, alpha, beta)) for sizes in (plain, twice))]


def _scattered(generator: np.random.Generator, sizes: Floats, alpha: float, beta: float) -> list[float]:
    off = generator.uniform(0.1, 0.3, len(sizes)) * generator.choice([-1.0, 1.0], len(sizes))
    return [float((alpha + beta * n) * (1 + e)) for n, e in zip(sizes, off, strict=True)]


def fault(result: object, sizes: Floats, times: Floats) -> str:
    """Right to six digits, or what is expected instead."""
    right = least_squares(sizes, times)
    if not isinstance(result, tuple | list | np.ndarray) or len(result) != 2:
        return f"gives {shown(result)}; a pair, alpha and beta, was expected"
    if near(result, right):
        return ""
    return f"gives alpha, beta = {listed(result)}; the least relative errors are at {listed(right)}"


def weighted(sizes: Floats, times: Floats, power: float) -> Pair:
    """Least squares with errors divided by times ** power."""
    beta, alpha = np.polyfit(sizes, times, 1, w=np.asarray(times) ** -power)
    return float(alpha), float(beta)


def _ends(sizes: Floats, times: Floats) -> Pair:
    (n1, t1), (n2, t2) = min(zip(sizes, times, strict=True)), max(zip(sizes, times, strict=True))
    beta = (t2 - t1) / (n2 - n1)
    return t1 - beta * n1, beta


def _of_logarithms(sizes: Floats, times: Floats) -> Pair:
    power, log_factor = np.polyfit(np.log(sizes), np.log(times), 1)
    return math.exp(log_factor), float(power)


def _swapped(trial: Trial) -> bool:
    right = least_squares(*trial.arguments)
    return near(trial.result, right[::-1])


def _bandwidth(sizes: Floats, times: Floats) -> Pair:
    alpha, beta = least_squares(sizes, times)
    return alpha, 1 / beta


EXERCISE = Calculation(
    name="fit_line",
    values="alpha and beta have the least squared relative errors, on exact and on scattered times",
    arguments=("sizes", "times"),
    cases=cases,
    fault=fault,
    own="tpcourse.costs.fitting",
    mistakes=(
        Mistake(
            "The two numbers are in the wrong order.",
            "Return alpha first, the seconds at size 0, and then beta, the seconds a byte.",
            shows=_swapped,
        ),
        Mistake(
            "The second number is a bandwidth, bytes a second; beta is seconds a byte.",
            "beta is the slope of time over size, 1 / bandwidth.",
            gives=_bandwidth,
        ),
        Mistake(
            "Errors count in seconds, so the largest arrays decide alone and small ones may be wrong by any factor.",
            "Divide each equation alpha + beta n = t by its t before you square: then all of them want to be 1.",
            gives=lambda sizes, times: weighted(sizes, times, 0),
        ),
        Mistake(
            "Errors are divided by t twice: the weight of an equation is 1/t, and squaring it makes 1/t^2.",
            "Divide the equation by t once. `numpy.polyfit(..., w=w)` multiplies the error by w before it squares.",
            gives=lambda sizes, times: weighted(sizes, times, 2),
        ),
        Mistake(
            "The line goes through the smallest and the largest size, whatever the others say.",
            "Every measurement gives one equation; least squares takes all of them.",
            gives=_ends,
        ),
        Mistake(
            "A straight line was fitted to logarithms: that is a power of n, and no sum of two terms.",
            "Fit t = alpha + beta n itself. Logarithms are for the picture.",
            gives=_of_logarithms,
        ),
    ),
)
