"""One measured collective, and the two bandwidths that people quote of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tpcourse.costs.asked import require_bytes, require_positive, require_ranks

BUS_FACTORS: Mapping[str, Callable[[int], float]] = MappingProxyType({
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "all_gather": lambda p: (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "broadcast": lambda p: 1.0,
    "reduce": lambda p: 1.0,
})  # fmt: skip
"""Operation -> bytes that cross a rank's link at best, over those of the whole array (nccl-tests, PERFORMANCE.md)."""


@dataclass(frozen=True)
class Measurement:
    """Seconds that an operation took on p ranks; `num_bytes` is the whole array, also of a gather or a scatter.

    Raises: ValueError for a size or a time that is not above 0, for p < 1, and for an operation without a bus factor.
    """

    op: str
    p: int
    num_bytes: int
    seconds: float

    def __post_init__(self) -> None:
        require_bytes(self.num_bytes)
        require_positive(self.seconds, "seconds", "1e-3, the median of the slowest rank")
        require_ranks(self.p)
        if self.op not in BUS_FACTORS:
            raise ValueError(f"no operation is named {self.op!r}; there are {', '.join(BUS_FACTORS)}")

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Algorithm bandwidth: bytes of the array over seconds."""
        return self.num_bytes / self.seconds

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth: what a rank's link carried, to be held against the link's own figure at every p."""
        return self.algorithm_bytes_per_s * BUS_FACTORS[self.op](self.p)
