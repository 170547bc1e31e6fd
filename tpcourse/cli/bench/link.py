"""A real slow link: alpha and beta of a cable shaped to 10 and to 1 Gb/s, and what a training step pays on it.

Two hosts are network namespaces on this machine, one rank on each. A step is measured three ways: one rank alone,
tensor parallel over the cable, data parallel over the cable. r is the time of a way's collectives, with nothing else,
over that of the rank alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tpcourse import costs
from tpcourse.cli import CommandError
from tpcourse.cli.bench import Result
from tpcourse.cli.bench.fresh import progress
from tpcourse.cli.two_hosts import command, missing

COLUMNS = ("link, tokens a rank", "alone ms", "tensor ms", "data ms", "r tensor", "r data")
LIMIT_S = 1800


def measure(repeats: int | None) -> Result:
    """The table and the figures, links from the fastest to the slowest."""
    if why := missing(("tc",)):
        raise CommandError(f"{why}. The recorded run is in tpcourse/recordings/link.json.")
    progress("link: two hosts, their cable unshaped, at 10 and at 1 Gb/s")
    reads, ours = os.pipe()  # while our end is open the hosts live
    try:
        words = command(sys.executable, "-m", "tpcourse.cli.bench.link_hosts", str(repeats or 7))
        done = subprocess.run(words, stdin=reads, capture_output=True, text=True, timeout=LIMIT_S)
    finally:
        os.close(reads)
        os.close(ours)
    if done.returncode:
        raise CommandError(f"the two hosts failed:\n{done.stderr.strip()}")
    return summary(json.loads(done.stdout.strip().splitlines()[-1]))


def summary(found: Mapping[str, Any]) -> Result:
    """alpha and beta of each link, as a ring's, and the shares that a step pays."""
    links: dict[str, Any] = {}
    rows: list[tuple[object, ...]] = []
    alphas: list[tuple[object, ...]] = []
    for name, one in found["links"].items():
        fit = costs.fit([costs.Measurement("all_reduce", *point) for point in one["measured"]])
        link = fit.as_link("ring")
        steps = [_ratios(step) for step in one["steps"]]
        links[name] = {
            "alpha_s": link.alpha_s,
            "bytes_per_s": link.bytes_per_s,
            "error": fit.error,
            "measured": one["measured"],
            "steps": steps,
        }
        rows += [_row(name, step) for step in steps]
        speed = 8e-9 * link.bytes_per_s
        alphas.append((f"{name}: alpha {1e6 * link.alpha_s:.0f} us, {speed:.2f} Gb/s", "", "", "", "", ""))
    figures = {"backend": "gloo", "p": 2, "has_netem": found["has_netem"], "model": found["model"], "links": links}
    return Result(COLUMNS, [*rows, *alphas], figures)


def _ratios(step: Mapping[str, float]) -> dict[str, float]:
    alone = step["alone_ms"]
    return {**step, "tensor_ratio": step["tensor_wire_ms"] / alone, "data_ratio": step["data_wire_ms"] / alone}


def _row(name: str, step: Mapping[str, float]) -> tuple[object, ...]:
    times = (step["alone_ms"], step["tensor_ms"], step["data_ms"])
    return (f"{name}, {step['tokens']:.0f}", *times, step["tensor_ratio"], step["data_ratio"])
