"""What of its communication a training step waits for: data-parallel buckets and ZeRO's third stage, beside torch's.

Forward and backward of a GPT, of about 400 million parameters in bfloat16 on GPUs, a tiny one on the CPU. `exposed` is
the time above the same step that sends nothing; E is the share hidden of what is exposed when each call is waited for.
On GPUs our buckets are timed once more with kernels of NCCL that have few blocks, and so leave more of the GPU free.
The recording has each variant's timeline too. `--repeats` is the number of samples.
"""

from __future__ import annotations

from typing import Any

from tpcourse.cli.bench import Result
from tpcourse.cli.bench.bare import on_bare_ranks
from tpcourse.cli.bench.fresh import progress
from tpcourse.timeline.span import covered, hidden, spans_of

COLUMNS = ("what", "variant", "ms", "/ nothing sent", "exposed ms", "E", "under computing %")
ALONE, SERIAL = "nothing sent", "one after the other"


def measure(repeats: int | None) -> Result:
    """The table and the figures, from fresh ranks without the ledger."""
    progress("exposed: forward and backward in all variants")
    return summary(on_bare_ranks("exposed_here", "measure_here", repeats))


def summary(found: dict[str, Any]) -> Result:
    """A row of the recording for each variant, and the table."""
    rows = [_row(kind, name, ms, times, found["timelines"]) for kind, times in found["ms"].items()
            for name, ms in times.items()]  # fmt: skip
    return Result(COLUMNS, [_line(row) for row in rows], {**found, "rows": rows})


def _row(kind: str, name: str, ms: float, times: dict[str, float], timelines: list[dict[str, Any]]) -> dict[str, Any]:
    drawn = [one["spans"] for one in timelines if (one["kind"], one["variant"]) == (kind, name)]
    return {
        "kind": kind,
        "variant": name,
        "ms": ms,
        "over_alone": ms / times[ALONE],
        "exposed_ms": ms - times[ALONE],
        "hidden": hidden(ms, times[ALONE], times[SERIAL]),
        "covered": min(covered(spans_of(drawn[0])).values()) if drawn else None,  # the rank that waits most
    }


def _line(row: dict[str, Any]) -> tuple[object, ...]:
    share = "" if row["covered"] is None else 100 * row["covered"]
    E = "" if row["hidden"] is None else row["hidden"]
    return (row["kind"], row["variant"], row["ms"], row["over_alone"], row["exposed_ms"], E, share)
