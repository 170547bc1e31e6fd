"""Two numbers from many measurements, and times at sizes that nobody measured.

The choice: one line, alpha + beta n, for each operation on each machine. Libraries change their protocol with the
size, so the truth has bends; but a line that is fitted to *relative* errors passes near every size, small ones too, and
two numbers can be understood. `Fit.error` says how near.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tpcourse.costs.asked import require_bytes
from tpcourse.costs.formulas import find_algorithm
from tpcourse.costs.links import Link
from tpcourse.costs.measured import Measurement


@dataclass(frozen=True)
class Fit:
    """A line through measurements of one operation on p ranks: alpha_s + beta_s_per_byte x num_bytes.

    `error` is the median relative error at the sizes that were fitted, between `smallest` and `largest` bytes.
    """

    op: str
    p: int
    alpha_s: float
    beta_s_per_byte: float
    error: float
    smallest: int
    largest: int

    def seconds(self, num_bytes: float) -> float:
        """The predicted time for an array of this size. Raises: ValueError for a size of 0 or less."""
        return self.alpha_s + self.beta_s_per_byte * require_bytes(num_bytes)

    def as_link(self, algorithm: str = "ring") -> Link:
        """The link that would give this line, had the operation run by this algorithm: alpha / steps, beta / arrays.

        Raises: ValueError for an algorithm that the operation does not have, or a fit on one rank.
        """
        chosen = find_algorithm(self.op, algorithm)
        if self.p == 1 or self.beta_s_per_byte == 0:
            raise ValueError(f"{self.op} on p = {self.p} ranks shows no link: fit larger arrays, on 2 ranks or more")
        alpha_s, beta = self.alpha_s / chosen.steps(self.p), self.beta_s_per_byte / chosen.arrays(self.p)
        return Link(f"{self.op} on {self.p} ranks", alpha_s, 1 / beta, f"fitted, as {algorithm}")


def fit(measurements: Iterable[Measurement]) -> Fit:
    """The line with the least sum of ((alpha + beta n) / t - 1)^2: errors count relative to the time t.

    Absolute errors would let the largest array decide alone: 1 % of a second outweighs all of a microsecond.
    Neither number is negative; where least squares wants that, it is 0 and the other is fitted alone.
    Raises: ValueError for fewer than 2 different sizes, or for more than one operation or number of ranks.
    """
    points = list(measurements)
    kinds = sorted({(m.op, m.p) for m in points})
    if len(kinds) > 1:
        found = ", ".join(f"{op} on {p} ranks" for op, p in kinds)
        raise ValueError(f"measurements of {found}: one line fits one of them; `fit_each` fits each operation")
    sizes = sorted({m.num_bytes for m in points})
    if len(sizes) < 2:
        raise ValueError(f"{len(points)} measurements at {len(sizes)} different sizes: a line needs 2 sizes or more")
    op, p = kinds[0]
    alpha_s, beta = least_squares([m.num_bytes for m in points], [m.seconds for m in points])
    error = median(abs((alpha_s + beta * m.num_bytes) / m.seconds - 1) for m in points)
    return Fit(op, p, alpha_s, beta, error, sizes[0], sizes[-1])


def least_squares(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """alpha and beta, neither negative, that minimise the sum of squared relative errors (normal equations)."""
    unit = max(sizes)  # so that both unknowns are seconds
    rows = [(1 / t, n / unit / t) for n, t in zip(sizes, times, strict=True)]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    alpha, beta = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if alpha < 0:
        alpha, beta = 0.0, b / bb
    elif beta < 0:
        alpha, beta = a / aa, 0.0
    return alpha, beta / unit


def fit_each(measurements: Iterable[Measurement]) -> dict[str, Fit]:
    """Operation -> its line. Raises: ValueError as `fit`."""
    points = list(measurements)
    if not points:
        raise ValueError("0 measurements: a line needs 2 sizes or more of an operation")
    return {op: fit(m for m in points if m.op == op) for op in dict.fromkeys(m.op for m in points)}


def every_other(measurements: Iterable[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """Measurements to fit and measurements to leave out, size by size in turn; the smallest size is fitted."""
    points = list(measurements)
    place = {size: index for index, size in enumerate(sorted({m.num_bytes for m in points}))}
    fitted, left_out = ([m for m in points if place[m.num_bytes] % 2 == odd] for odd in (0, 1))
    return fitted, left_out


def predict(fits: Mapping[str, Fit], op: str, num_bytes: float) -> float:
    """Seconds of an operation at a size, by its line. Raises: ValueError for an operation that was not fitted."""
    if op not in fits:
        raise ValueError(f"{op!r} was not fitted, only {', '.join(fits) or 'nothing'}: measure it at 2 sizes or more")
    return fits[op].seconds(num_bytes)


def errors(fits: Mapping[str, Fit], measurements: Iterable[Measurement]) -> list[float]:
    """Relative error of the prediction for each measurement: |predicted / measured - 1|."""
    return [abs(predict(fits, m.op, m.num_bytes) / m.seconds - 1) for m in measurements]


def median_error(fits: Mapping[str, Fit], measurements: Iterable[Measurement]) -> float:
    """The median of `errors`. Raises: ValueError for no measurement."""
    found = errors(fits, measurements)
    if not found:
        raise ValueError("0 measurements to compare with: measure at sizes that were not fitted")
    return median(found)
