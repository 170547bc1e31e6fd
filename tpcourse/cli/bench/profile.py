"""A training loop on one device, with TP, with TP and SP, and with overlap: loss, gradient norm, time and peak memory.

On GPUs a GPT at three sizes in bfloat16 over float32 weights; on the CPU a tiny one. All modes start from the same
weights and see the same batches, so that losses and gradient norms must agree: a few steps in float32 to 1e-4, all
losses and the first norm in bfloat16 to its rounding. Later norms may be further off: Adam's first steps are as large
for gradients that are noise. A step's time is synchronised on both sides; `--repeats` is the number of rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpcourse.cli.bench import Result
from tpcourse.cli.bench.bare import on_bare_ranks
from tpcourse.cli.bench.fresh import progress

COLUMNS = (
    "size",
    "mode",
    "ms",
    "/ one device",
    "/ TP + SP",
    "peak GB",
    "outside GB",
    "last loss",
    "loss off",
    "first norm off",
    "norm off",
    "float32 off",
)
ALONE, BASE = "one device", "TP + SP"
ROUNDING = 2.0**-8
"""By how much a number may change, relative to it, when it is rounded to bfloat16."""
MOST = {"loss_apart": ROUNDING, "first_norm_apart": ROUNDING, "norm_apart": float("inf"), "exact_apart": 1e-4}
"""What may be off."""


def measure(repeats: int | None) -> Result:
    """The table and the figures, from fresh ranks without the ledger."""
    progress("profile: a training loop in all modes, each built and let go in each round")
    result = summary(on_bare_ranks("profile_here", "measure_here", repeats))
    progress(f"profile: {result.figures['verdict']}")
    return result


def summary(found: dict[str, Any]) -> Result:
    """Ratios of times, how far losses and norms are from one device's, and the table."""
    rows: list[tuple[object, ...]] = []
    far: list[str] = []
    for size in found["sizes"]:
        alone, name = size["modes"][ALONE], title(size)
        for mode, one in size["modes"].items():
            one |= _off(one, alone)
            far += [f"{name}, {mode}"] if not all(one[key] <= most for key, most in MOST.items()) else []
            rows.append((name, mode, *_cells(one, size["modes"])))
        rows += [(name, mode, f"skipped: {why[:60]}", *[""] * 9) for mode, why in size["skipped"].items()]
    verdict = f"DIFFER FROM ONE DEVICE'S: {'; '.join(far)}" if far else "agree with one device's to rounding"
    return Result(COLUMNS, rows, {**found, "agree": not far, "verdict": f"losses and gradient norms {verdict}"})


def _off(one: dict[str, Any], alone: dict[str, Any]) -> dict[str, float]:
    """How far losses and gradient norms are from one device's."""
    keys = ("losses", "norms", "exact_losses", "exact_norms")
    loss, norm, exact_loss, exact_norm = (apart(one[key], alone[key]) for key in keys)
    first = apart(one["norms"][:1], alone["norms"][:1])
    exact = exact_loss if exact_loss != exact_loss else max(exact_loss, exact_norm)
    return {"loss_apart": loss, "first_norm_apart": first, "norm_apart": norm, "exact_apart": exact}


def title(size: dict[str, Any]) -> str:
    """A size in words: h 512, F 1024, 4 layers, s 256, b 4."""
    config = size["config"]
    return f"h {config['D']}, F {config['F']}, {config['L']} layers, s {config['T']}, b {size['sequences']}"


def apart(values: Sequence[float], expected: Sequence[float]) -> float:
    """The largest difference of any step, relative to the number; it is no number if a value is none."""
    distances = [abs(value - right) / abs(right) for value, right in zip(values, expected, strict=True)]
    return next((distance for distance in distances if distance != distance), max(distances))


def _cells(one: dict[str, Any], modes: dict[str, Any]) -> tuple[object, ...]:
    over = (one["ms"] / modes[name]["ms"] if name in modes else "" for name in (ALONE, BASE))
    bytes_held = ("" if one[key] is None else one[key] for key in ("peak_GB", "outside_GB"))
    off = (f"{one[key]:.1e}" for key in MOST)
    return (one["ms"], *over, *bytes_held, one["losses"][-1], *off)
