"""Gradients that are summed in buckets while backward runs: when is the last sum there?"""

from __future__ import annotations

from math import ceil, floor, sqrt

from tpcourse.costs.asked import require_positive
from tpcourse.costs.links import Line, find_link


def finish_s(gradient_bytes: float, bucket_bytes: float, backward_s: float, line: str | Line) -> float:
    """Seconds from the start of backward to the end of the last bucket's sum.

    Gradients become ready at an even rate over `backward_s`. A bucket leaves when it is full, the last one when
    backward ends; sums run one after another, and n bytes take alpha + beta n.
    Raises: ValueError for anything that is not above 0, or a bucket that is larger than the gradient.
    """
    total = require_positive(gradient_bytes, "gradient_bytes", "1e9")
    bucket = require_positive(bucket_bytes, "bucket_bytes", "25e6")
    backward = require_positive(backward_s, "backward_s", "0.1")
    if bucket > total:
        raise ValueError(f"bucket_bytes = {bucket:g} is more than gradient_bytes = {total:g}: give {total:g} at most")
    alpha_s, beta = find_link(line).alpha_s, find_link(line).beta_s_per_byte
    num_full = floor(total / bucket * (1 + 1e-12))
    gap_s, call_s = backward * bucket / total, alpha_s + beta * bucket
    end_s = gap_s + (num_full - 1) * max(gap_s, call_s) + call_s
    rest = total - num_full * bucket
    return max(end_s, backward) + alpha_s + beta * rest if rest > 1e-9 * total else end_s


def best_bucket(gradient_bytes: float, backward_s: float, line: str | Line) -> float:
    """The bucket, of equal ones, with which the last sum ends first.

    k buckets of n/k bytes end at T + alpha + beta n/k while calls fit between buckets, which asks for many; and at
    T/k + k alpha + beta n once they queue, which has its least at k = sqrt(T / alpha). They begin to queue at
    k = (T - beta n) / alpha. The best k is the larger of the two, rounded to the better side.
    Raises: ValueError as `finish_s`.
    """
    total = require_positive(gradient_bytes, "gradient_bytes", "1e9")
    backward = require_positive(backward_s, "backward_s", "0.1")
    found = find_link(line)
    alpha_s = max(found.alpha_s, backward / total)  # no more buckets than bytes
    k = max((backward - found.beta_s_per_byte * total) / alpha_s, sqrt(backward / alpha_s), 1.0)
    return min((total / k for k in (floor(k), ceil(k))), key=lambda bucket: finish_s(total, bucket, backward, line))
