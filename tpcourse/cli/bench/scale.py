"""The same work on 1, 2, 4 (and 8) GPUs of one machine: what grows with their number, and what does not.

Groups of 2, then of 4, work side by side, so that the machine is as busy at every number. Bus bandwidth; a training
step's forward and backward with tensor parallelism; the all-reduce pair against the gather/scatter pair; E of every
form of overlap; bytes and time of ZeRO's stages. On the CPU four ranks and tiny sizes. `--repeats` is the number of
samples.
"""

from __future__ import annotations

from typing import Any

from tpcourse.cli.bench import Result
from tpcourse.cli.bench.bare import on_bare_ranks
from tpcourse.cli.bench.fresh import progress
from tpcourse.cli.bench.overlap import rows_of, what

COLUMNS = ("what", "variant", "GPUs", "ms", "figure", "is")
ALONE = "one device"
ALL_REDUCE, SPLIT = "all-reduce pair", "gather/scatter pair"


def measure(repeats: int | None) -> Result:
    """The table and the figures, from fresh ranks without the ledger."""
    progress("scale: all parts at each number of ranks")
    return summary(on_bare_ranks("scale_here", "measure_here", repeats))


def summary(found: dict[str, Any]) -> Result:
    """Ratios from times, E of each variant, and the table."""
    alone = {one["model"]: one["ms"] for one in found["model"] if one["mode"] == ALONE}
    figures = {
        **{key: value for key, value in found.items() if key != "problems"},
        "model": [one | {"over_one": one["ms"] / alone[one["model"]]} for one in found["model"]],
        "overlap": [row | {"p": problem["p"]} for problem in found["problems"] for row in rows_of(problem)],
    }
    return Result(COLUMNS, [row for part in _PARTS.values() for row in part(figures)], figures)


def _bus(figures: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (f"{one['num_bytes']:,} bytes", one["op"], one["p"], 1e-3 * one["us"], one["bus_GBps"], "bus GB/s")
        for one in figures["bus"]
    ]


def _model(figures: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (one["model"], one["mode"], one["p"], one["ms"], one["over_one"], "/ one device")
        for one in figures["model"]
    ]


def _pair(figures: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (f"MLP, {one['tokens']} tokens, h {one['D']}", name, one["p"], ms, ms / one["ms"][ALL_REDUCE], "/ all-reduce")
        for one in figures["pair"]
        for name, ms in one["ms"].items()
    ]


def _overlap(figures: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (what(one), one["variant"], one["p"], one["ms"], "" if one["hidden"] is None else one["hidden"], "E")
        for one in figures["overlap"]
    ]


def _zero(figures: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        ("ZeRO", f"stage {one['stage']}", one["p"], one["ms"], one["bytes_per_weight"], "bytes a weight")
        for one in figures["zero"]
    ]


_PARTS = {"bus": _bus, "model": _model, "pair": _pair, "overlap": _overlap, "zero": _zero}
"""Part of the figures -> its lines of the table."""
