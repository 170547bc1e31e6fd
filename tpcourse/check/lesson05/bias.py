"""What goes wrong with a bias beside a sum over ranks; rows of several exercises share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpcourse.check.compare import agree
from tpcourse.check.evidence import Evidence
from tpcourse.check.lesson05 import common
from tpcourse.check.misconceptions import Finding, Misconception


def amount(name: str, p: int) -> float:
    """How much of a bias each of p ranks adds."""
    return {"no": 0.0, "all": 1.0, "1/p": 1 / p, "-(p-1)": 1.0 - p}[name]


def added(ys: list[Any], ranks: list[dict[str, Any]], bias: str, much: str) -> list[Any]:
    """Each rank's y with so much of its bias."""
    factor = amount(much, len(ranks))
    return [y + factor * given[bias] for y, given in zip(ys, ranks, strict=True)]


def averaged(bias: str) -> Callable[[Finding], bool]:
    """Whether y is the mean of the ranks' products, with the bias or a p-th of it; whatever gradients are."""

    def shows(finding: Finding) -> bool:
        evidence = finding.evidence
        if not evidence.finished or not all(isinstance(output, list) and output for output in evidence.outputs):
            return False
        return any(all(agree(output[0], mean) for output in evidence.outputs) for mean in _means(evidence, bias))

    return shows


def _means(evidence: Evidence, bias: str) -> tuple[Any, Any]:
    y, added = evidence.expected[0][0], evidence.inputs[0][bias].array
    return y / evidence.p, (y - added) / evidence.p + added


def on_one_rank(index: int) -> Misconception:
    """Entry `index` of the result, the gradient of the bias, is there on the group's first rank only."""
    return Misconception(
        "bias on one rank",
        common.first_only(index),
        "Only the first rank adds the bias, so only its copy of the bias has a gradient: after one step the copies "
        "differ.",
        "Add the bias after the sum, on every rank.",
    )


def summed(index: int) -> Misconception:
    """Entry `index` of the result, the gradient of the bias, is added up over ranks, and nothing else is wrong."""

    def way(evidence: Evidence) -> list[Any]:
        return [
            [evidence.p * array if place == index else array for place, array in enumerate(row)]
            for row in evidence.expected
        ]

    return common.by_playing(
        "gradient of the bias summed",
        "All is right but the gradient of the bias, which is p times too large: every rank has the whole of it, and "
        "it comes out as a sum over ranks.",
        "What is added behind the sum needs no copy: its gradient is the whole dy, on every rank.",
        way,
    )
