"""Exercise `bucket_bytes(gradient_bytes, backward_s, alpha_s, beta_s_per_byte)`: the bucket that exposes least."""

from __future__ import annotations

from math import ceil, isfinite, sqrt
from numbers import Real

import numpy as np

from tpcourse.check.calculation import Calculation, Mistake, Trial, near, shown
from tpcourse.costs.buckets import best_bucket, finish_s
from tpcourse.costs.links import Link

Numbers = tuple[float, float, float, float]
SLACK = 1.1  # exposed time, over the least possible


def cases(generator: np.random.Generator) -> list[Numbers]:
    """A link so fast that sums fit between buckets; one so slow that they queue; a gradient not worth cutting."""
    u = generator.uniform(0.8, 1.25, 9)
    fast = (1e9 * u[0], 0.1 * u[1], 1e-4 * u[2], 1e-11)
    slow = (1e9 * u[3], 0.1 * u[4], 5e-4 * u[5], 2 * 0.1 * u[4] / (1e9 * u[3]))
    small = (1e5 * u[6], 1e-3 * u[7], 4e-3 * u[8], 1e-9)
    return [tuple(float(x) for x in row) for row in (fast, slow, small)]  # type: ignore[misc]


def best(gradient_bytes: float, backward_s: float, alpha_s: float, beta_s_per_byte: float) -> float:
    """The bucket that ends first."""
    return best_bucket(gradient_bytes, backward_s, Link("", alpha_s, 1 / beta_s_per_byte))


def fault(result: object, *numbers: float) -> str:
    """Within a tenth of the least exposed time, or both times."""
    gradient_bytes, backward_s, alpha_s, beta = numbers
    usable = isinstance(result, Real) and not isinstance(result, bool) and isfinite(result)
    if not usable or not 0 < float(result) <= gradient_bytes * (1 + 1e-9):  # type: ignore[arg-type]
        return f"gives {shown(result)}; a number of bytes above 0 and up to gradient_bytes was expected"
    link, bucket = Link("", alpha_s, 1 / beta), min(float(result), gradient_bytes)  # type: ignore[arg-type]
    ends = (finish_s(gradient_bytes, size, backward_s, link) - backward_s for size in (bucket, best(*numbers)))
    mine, least = ends
    if mine <= SLACK * least:
        return ""
    return f"buckets of {shown(result)} bytes end {1e3 * mine:.3g} ms after backward, the best {1e3 * least:.3g} ms"


def _one_bucket(gradient_bytes: float, *_: float) -> float:
    return gradient_bytes


def _fixed(trial: Trial) -> bool:
    return any(near(trial.result, min(size, trial.arguments[0])) for size in (25e6, 25 * 2**20))


def _number(trial: Trial) -> bool:
    num_buckets = trial.arguments[0] / best(*trial.arguments)
    return isinstance(trial.result, Real) and 0.66 < float(trial.result) / num_buckets < 1.5


def _half_size(gradient_bytes: float, backward_s: float, alpha_s: float, beta: float) -> float:
    return min(alpha_s / beta, gradient_bytes)


def _always_queue(trial: Trial) -> bool:
    gradient_bytes, backward_s, alpha_s, _ = trial.arguments
    k = sqrt(backward_s / alpha_s)
    near_it = {gradient_bytes / max(1.0, count) for count in (k, int(k), ceil(k), round(k))}
    return any(near(trial.result, size) for size in near_it)


def _too_small(trial: Trial) -> bool:
    return isinstance(trial.result, Real) and 0 < float(trial.result) < best(*trial.arguments) / 3


EXERCISE = Calculation(
    name="bucket_bytes",
    values="the last sum ends as early as it can, on a fast link, on a slow one and for a small gradient",
    cases=cases,
    fault=fault,
    own="tpcourse.costs.buckets",
    mistakes=(
        Mistake(
            "One bucket holds everything, so nothing leaves before backward has ended, and all of it is exposed.",
            "Cut the gradient: a bucket may leave while backward still makes the next one.",
            gives=_one_bucket,
        ),
        Mistake(
            "25 MB is a default for some cluster; the best size depends on alpha, beta and the length of backward.",
            "Compute when the last sum ends for many sizes, and return the size that ends first.",
            shows=_fixed,
        ),
        Mistake(
            "This is how many buckets there are, and not how large one is.",
            "Return gradient_bytes divided by the number of buckets.",
            shows=_number,
        ),
        Mistake(
            "At alpha / beta bytes start-up and transfer take equally long, which says nothing of when backward ends.",
            "What counts is the end of the last sum: it waits for its gradients and for the sums before it.",
            gives=_half_size,
        ),
        Mistake(
            "The square root is right where sums queue. On a fast link they do not, and more buckets expose less.",
            "While a sum fits between two buckets only the last one is exposed: go on cutting until they queue.",
            shows=_always_queue,
        ),
        Mistake(
            "Buckets are so small that alpha is paid too often: sums queue, and the queue ends long after backward.",
            "A sum begins when its bucket is full *and* the sum before it has ended.",
            shows=_too_small,
        ),
    ),
)
