"""A pytest plugin for the judge: notes what became of each cell, and lets stderr cost nothing.

The notes are lines of JSON in $TPCOURSE_GRADE/cells.jsonl, written as the cells end, so that a kill loses none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SHOWN = 20_000  # characters kept of a text


def pytest_collectstart(collector: Any) -> None:
    """A warning of a new version and a line from C code are no answer: stderr is not compared."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare = (*collector.skip_compare, "stderr")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    """Write down what became of a cell, as soon as it is known."""
    report = yield
    if hasattr(item, "cell_num") and (report.when == "call" or report.failed):
        with Path(os.environ["TPCOURSE_GRADE"], "cells.jsonl").open("a", encoding="utf-8") as notes:
            notes.write(json.dumps(note_of(item, report)) + "\n")
    return report


def note_of(item: Any, report: Any) -> dict[str, Any]:
    """What became of a cell: outcome, error, text on stdout, seconds; `lost` once no further cell can run."""
    outputs = getattr(getattr(item, "fresh", None), "outputs", [])
    errors = [output for output in outputs if output.output_type == "error"]
    stdout = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    lost = item.parent.lost
    return {
        "cell": item.cell_num,
        "outcome": report.outcome,
        "ename": errors[-1].ename[:200] if errors else "",
        "evalue": errors[-1].evalue[:SHOWN] if errors else "",
        "stdout": stdout[:SHOWN],
        "message": "" if report.passed else str(report.longrepr)[:SHOWN],
        "lost": lost or "",
        "seconds": report.duration,
    }
