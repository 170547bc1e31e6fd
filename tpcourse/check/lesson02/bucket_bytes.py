"""Exercise `bucket_bytes(gradient_bytes, backward_s, alpha_s, beta_s_per_byte)`: the bucket that exposes least."""

from __future__ import annotations

from math import ceil, floor, isfinite, sqrt
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
    return [(_parted(float(n), *map(float, rest)), *map(float, rest)) for n, *rest in (fast, slow, small)]  # type: ignore


def _parted(gradient_bytes: float, *rest: float) -> int:
    """A whole number of bytes near this one, whose share in the best number of buckets rounds up."""
    n = int(gradient_bytes)
    while True:
        count = round(n / best(n, *rest))
        if count == 1 or n % count > count / 2:
            return n
        n += 1


def best(gradient_bytes: float, backward_s: float, alpha_s: float, beta_s_per_byte: float) -> float:
    """The bucket that ends first."""
    return best_bucket(gradient_bytes, backward_s, Link("", alpha_s, 1 / beta_s_per_byte))


def fault(result: object, *numbers: float) -> str:
    """Within a tenth of the least exposed time, or both times."""
    gradient_bytes, backward_s, alpha_s, beta = numbers
    usable = isinstance(result, Real) and not isinstance(result, bool) and isfinite(result)
    if not usable or not 0 < float(result) <= gradient_bytes + 1:  # type: ignore[arg-type]
        return f"gives {shown(result)}; a number of bytes above 0 and up to gradient_bytes was expected"
    bucket = min(float(result), gradient_bytes)  # type: ignore[arg-type]
    mine, least = _exposed_s(bucket, *numbers), _exposed_s(best(*numbers), *numbers)
    if mine <= SLACK * least:
        return ""
    if rest := _rest(bucket, *numbers):
        count = floor(gradient_bytes / bucket) + 1
        return f"makes {count} buckets, the last of {rest:.0f} bytes, and it costs alpha like the others"
    return f"buckets of {shown(result)} bytes end {1e3 * mine:.3g} ms after backward, the best {1e3 * least:.3g} ms"


def _exposed_s(bucket: float, gradient_bytes: float, backward_s: float, alpha_s: float, beta: float) -> float:
    return finish_s(gradient_bytes, bucket, backward_s, Link("", alpha_s, 1 / beta)) - backward_s


def _rest(bucket: float, *numbers: float) -> float:
    """The bytes of a last bucket without which this size would be good enough; else 0."""
    count = floor(numbers[0] / bucket)
    good = _exposed_s(numbers[0] / count, *numbers) <= SLACK * _exposed_s(best(*numbers), *numbers)
    return numbers[0] - count * bucket if good else 0.0


def _leaves_rest(trial: Trial) -> bool:
    return bool(_rest(float(trial.result), *trial.arguments))


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
    arguments=("gradient_bytes", "backward_s", "alpha_s", "beta_s_per_byte"),
    cases=cases,
    fault=fault,
    own="tpcourse.costs.buckets",
    mistakes=(
        Mistake(
            "The buckets are a little too small, and a rest is left for one more: its few bytes cost alpha as well.",
            "Return gradient_bytes / k as it is, or rounded up, `math.ceil`: then k buckets hold everything.",
            shows=_leaves_rest,
        ),
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
