"""How long collectives take on this machine, and how well two numbers each predict sizes that were not fitted.

Whole arrays of 1 MiB to 1 GiB on GPUs, of 4 KiB to 16 MiB on the CPU: every other size is fitted, those between are
predicted. Bandwidths are those of nccl-tests, in GB/s of 1e9 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tpcourse import costs
from tpcourse.cli.bench import Result
from tpcourse.cli.bench.fresh import progress
from tpcourse.costs import Measurement

KIB, MIB = 1024, 1024 * 1024
COLUMNS = ("collective, bytes", "us", "algorithm GB/s", "bus GB/s", "predicted us", "error %", "fitted")


def sizes_of(backend: str) -> list[int]:
    """Bytes of the whole array, powers of 2; an odd number of them, so that both ends are fitted."""
    first, steps = (MIB, 10) if backend == "nccl" else (4 * KIB, 12)
    return [first * 2**step for step in range(steps + 1)]


def measure(repeats: int | None) -> Result:
    """The table, the fits, and the median error at sizes that were not fitted."""
    from tpcourse import start_ranks
    from tpcourse.ranks.timing import time_collectives

    ranks = start_ranks()
    backend, sizes = ranks.backend, sizes_of(ranks.backend)
    progress(f"collectives: {len(sizes)} sizes on {ranks}")
    found = ranks.run(time_collectives, sizes, repeats=repeats or 50)[0]
    ranks.stop()
    return summary(found, backend)


def summary(found: Sequence[Measurement], backend: str) -> Result:
    """Fit every other size, predict the rest."""
    seen, unseen = costs.every_other(found)
    fits = costs.fit_each(seen)
    figures = {
        "backend": backend,
        "p": found[0].p,
        "median_error": costs.median_error(fits, unseen),
        "median_error_of": {op: costs.median_error(fits, [m for m in unseen if m.op == op]) for op in fits},
        "largest_bus_GB_per_s": {op: _largest(found, op).bus_bytes_per_s / 1e9 for op in fits},
        "fits": {op: asdict(fit) for op, fit in fits.items()},
        "measured": [asdict(m) for m in seen],
        "unseen": [asdict(m) for m in unseen],
    }
    rows = [_row(m, fits[m.op].seconds(m.num_bytes), m in seen) for m in sorted(found, key=_order)]
    rows.append(("median error, not fitted", "", "", "", "", 100 * costs.median_error(fits, unseen), ""))
    return Result(COLUMNS, rows, figures)


def _order(m: Measurement) -> tuple[str, int]:
    return m.op, m.num_bytes


def _largest(found: Sequence[Measurement], op: str) -> Measurement:
    return max((m for m in found if m.op == op), key=_order)


def _row(m: Measurement, predicted_s: float, was_fitted: bool) -> tuple[object, ...]:
    bandwidths = (m.algorithm_bytes_per_s / 1e9, m.bus_bytes_per_s / 1e9)
    error = 100 * abs(predicted_s / m.seconds - 1)
    name = f"{m.op}, {m.num_bytes:,}"
    return (name, 1e6 * m.seconds, *bandwidths, 1e6 * predicted_s, error, "yes" if was_fitted else "")
