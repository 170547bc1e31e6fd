"""Tensor parallelism: a layer's time beside one device and torch's `parallelize_module`, its bytes, and a whole model.

On GPUs in bfloat16 at sizes of real models; on the CPU at sizes that take a second. "tokens split" is sequence
parallelism: the gather/scatter pair in place of the all-reduce pair. A ratio below 1 is in our favour.
"""

from __future__ import annotations

from typing import Any

from tpcourse.cli.bench import Result
from tpcourse.cli.bench.calls import here
from tpcourse.cli.bench.fresh import progress

COLUMNS = ("what", "variant", "ms", "/ one device", "/ torch's", "bytes", "last loss")
OURS, TORCHS, ALONE = "ours", "torch's", "one device"


def measure(repeats: int | None) -> Result:
    """The table and the figures of all four parts."""
    from tpcourse import start_ranks

    ranks = start_ranks()
    number = repeats or (50 if ranks.backend == "nccl" else 10)
    found: dict[str, Any] = {"backend": ranks.backend, "p": len(ranks)}
    with ranks.patient(600):
        for part, module in (("mlp", "times"), ("block", "times"), ("memory", "models"), ("model", "models")):
            ranks.restart()  # nothing of the part before is in the way
            progress(f"tensor: {part} on {ranks}")
            found[part] = ranks.run(here, f"tensor_{module}", part, number)[0]
    ranks.stop()
    return summary(found)


def summary(found: dict[str, Any]) -> Result:
    """Ratios from the times, shares from the bytes, and the table."""
    rows: list[tuple[object, ...]] = []
    for part in ("mlp", "block"):
        for row in found[part]:
            row["ratio"] = row["ms"][OURS] / row["ms"][TORCHS]
            what = f"{part}, {row['tokens']} tokens, h {row['D']}, F {row['F']}"
            rows += [_time(what, name, ms, row["ms"]) for name, ms in row["ms"].items()]
    for name, held in found["memory"]["held_bytes"].items():
        rows.append(("activations", name, "", held / found["memory"]["held_bytes"][ALONE], "", held, ""))
    alone_ms = found["model"]["modes"][ALONE]["ms"]
    for name, mode in found["model"]["modes"].items():
        rest = ("", mode["peak_bytes"] or "", mode["losses"][-1])
        rows.append(("model", name, mode["ms"], mode["ms"] / alone_ms, *rest))
    return Result(COLUMNS, rows, found)


def _time(what: str, name: str, ms: float, of: dict[str, float]) -> tuple[object, ...]:
    return (what, name, ms, ms / of[ALONE], ms / of[TORCHS], "", "")
