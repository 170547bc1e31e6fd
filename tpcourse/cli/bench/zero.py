"""ZeRO: a training step of our three stages beside torch's DDP, ZeroRedundancyOptimizer and fully_shard.

On GPUs a GPT of about 1 billion parameters; on the CPU a tiny one. All variants train in bfloat16 with float32 masters
and the fused AdamW on the same batches, and average gradients in bfloat16. Their first losses must agree.
`--repeats` is the number of rounds.
"""

from __future__ import annotations

from typing import Any

from tpcourse.cli.bench import Result
from tpcourse.cli.bench.bare import on_bare_ranks
from tpcourse.cli.bench.fresh import progress

COLUMNS = ("variant", "ms", "/ DDP", "peak GB", "reserved GB", "bytes a weight", "allocated", "last loss")
RATIOS = (
    ("stage 3", "fully_shard"),
    ("stage 3", "stage 3, no prefetch"),
    ("stage 1", "ZeroRedundancyOptimizer"),
    ("stage 1", "DDP"),
    ("stage 2", "DDP"),
    ("stage 3", "DDP"),
)
ROUNDING = 2.0**-8
"""By how much a number may change, relative to it, when it is rounded to bfloat16."""


def measure(repeats: int | None) -> Result:
    """The table and the figures, from fresh ranks without the ledger."""
    progress("zero: a training step in all variants, each built and let go in each round")
    return summary(on_bare_ranks("zero_here", "measure_here", repeats))


def summary(found: dict[str, Any]) -> Result:
    """Ratios of times and peaks, how far losses are apart, and the table."""
    by_name = {row["name"]: row for row in found["rows"]}
    ratios = {f"{one} / {other}": _ratio(by_name[one], by_name[other]) for one, other in RATIOS}
    apart = {name: _apart(row["losses"], by_name["DDP"]["losses"]) for name, row in by_name.items()}
    far = [name for name, distance in apart.items() if not distance <= ROUNDING]
    figures = {**found, "ratios": ratios, "losses_apart": apart, "losses_agree": not far}
    rows = [_row(row, by_name["DDP"]["ms"]) for row in found["rows"]]
    rows += [(name, "", ratio["ms"], _or_nothing(ratio["peak"]), "", "", "", "") for name, ratio in ratios.items()]
    verdict = f"LOSSES DIFFER FROM DDP'S: {', '.join(far)}" if far else "losses agree to bfloat16's rounding"
    rows.append((verdict, "", "", "", "", "", "", max(apart.values())))
    return Result(COLUMNS, rows, figures)


def _ratio(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float | None]:
    """Below 1 is in favour of the first."""
    has_peaks = one["peak_GB"] is not None
    return {"ms": one["ms"] / other["ms"], "peak": one["peak_GB"] / other["peak_GB"] if has_peaks else None}


def _apart(losses: list[float], expected: list[float]) -> float:
    """The largest difference of any step, relative to the loss; it is no number if a loss is none."""
    distances = [abs(loss - right) / abs(right) for loss, right in zip(losses, expected, strict=True)]
    return next((distance for distance in distances if distance != distance), max(distances))


def _row(row: dict[str, Any], ddp_ms: float) -> tuple[object, ...]:
    peaks = (_or_nothing(row["peak_GB"]), _or_nothing(row["reserved_GB"]))
    counted = (row["bytes_per_weight"], _or_nothing(row["allocated_per_weight"]), row["losses"][-1])
    return (row["name"], row["ms"], row["ms"] / ddp_ms, *peaks, *counted)


def _or_nothing(number: float | None) -> float | str:
    return "" if number is None else number
