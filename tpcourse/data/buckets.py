"""Which gradients travel together: all of one dtype as one flat array, cut into buckets by bytes.

Nothing is sent here, and only sizes and dtypes of the weights are read: they may be on the meta device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BYTES_PER_MB = 1_000_000


@dataclass(frozen=True)
class Bucket:
    """Elements start .. end - 1 of the flat gradients of one dtype: what one all-reduce carries.

    `members` are the weights that it holds, wholly or in part, by their number in the module's order.
    """

    dtype: torch.dtype
    start: int
    end: int
    members: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """What it holds, in bytes."""
        return (self.end - self.start) * self.dtype.itemsize


def num_buckets(num_bytes: int, bucket_bytes: int, first_bytes: int | None = None) -> int:
    """How many buckets a flat array takes: 1 + ceil((n - f) / b), or ceil(n / b) if the first is not smaller.

    n bytes, buckets of b bytes, the first of f (b if None). An array below f takes one bucket; one of no
    bytes takes none. Sizes are rounded down to whole elements before they get here.
    """
    first_bytes = bucket_bytes if first_bytes is None else first_bytes
    if num_bytes == 0:
        return 0
    return 1 + -(-max(0, num_bytes - first_bytes) // bucket_bytes)


def plan_buckets(
    weights: Sequence[Tensor], bucket_bytes: float, first_bytes: float, num_flags: int = 0
) -> list[Bucket]:
    """The buckets of these weights' gradients, in the order in which they leave.

    The flat array of a dtype holds the last weight first, because backward reaches the last layer first. It
    is cut every `bucket_bytes`, through a weight if need be; only the first bucket of all is `first_bytes`.
    A bucket can leave when the last of its members has its gradient, and that decides the order among dtypes.
    So the order follows from the module alone, and ranks with equal modules have equal orders.
    `num_flags` elements more travel at the end of the array that ends last.
    """
    backward = range(len(weights))[::-1]
    arrival = {index: place for place, index in enumerate(backward)}
    buckets: list[Bucket] = []
    for dtype in dict.fromkeys(weights[index].dtype for index in backward):
        limit, first = (max(1, int(size // dtype.itemsize)) for size in (bucket_bytes, first_bytes))
        members = [index for index in backward if weights[index].dtype == dtype]
        buckets += _cut(
            dtype,
            [(index, weights[index].numel()) for index in members],
            num_flags if members[-1] == 0 else 0,
            limit,
            limit if buckets else first,
        )
    return sorted(buckets, key=lambda b: (max((arrival[index] for index in b.members), default=len(weights)), b.start))


def _cut(dtype: torch.dtype, members: list[tuple[int, int]], num_flags: int, limit: int, first: int) -> list[Bucket]:
    """One dtype's array, cut at first, first + limit, first + 2 limit, ..."""
    spans, end = [], 0
    for index, numel in members:
        spans.append((index, end, end + numel))
        end += numel
    end += num_flags
    edges = [0, *range(first, end, limit), end]
    return [
        Bucket(dtype, a, b, tuple(index for index, low, high in spans if max(low, a) < min(high, b)))
        for a, b in zip(edges, edges[1:], strict=False)
        if a < b
    ]
