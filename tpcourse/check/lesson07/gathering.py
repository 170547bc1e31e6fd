"""What the exercises on layers may hold when a gather has begun: the peak, which no layer's begin shows."""

from __future__ import annotations

from collections.abc import Callable

from tpcourse.check.evidence import Evidence
from tpcourse.check.lesson07 import common, layers
from tpcourse.check.lesson07.layers import Moment
from tpcourse.check.misconceptions import Misconception


def over(ahead: int) -> Callable[[Evidence, int], str]:
    """What is held too much on a rank, the first time: when a layer begins, else when a gather does."""
    at_layer = layers.over(ahead)

    def text(evidence: Evidence, rank: int) -> str:
        if (found := at_layer(evidence, rank)) or not (moments := _over(ahead, evidence, rank)):
            return found
        (first, *_) = moments
        most = layers.allowed(first, layers.stack(evidence.case), ahead)
        where = f"when a gather begins before the {first.kind} of layer {first.number}"
        return f"holds {first.held:,} bytes {where}, the budget is {most:,}"

    return text


def _over(ahead: int, evidence: Evidence, rank: int) -> list[Moment]:
    found: list[Moment] = evidence.outcomes[rank].facts.get("gathering", [])
    return [moment for moment in found if moment.held > layers.allowed(moment, layers.stack(evidence.case), ahead)]


def kept_meanwhile(ahead: int) -> Misconception:
    """Held at the start of gathers alone."""

    def shows(evidence: Evidence, rank: int) -> bool:
        return not layers.over(ahead)(evidence, rank) and bool(_over(ahead, evidence, rank))

    return common.by_line(
        "kept meanwhile",
        shows,
        "The layer before is still there while the next one is gathered: its name is given to something else only "
        "when the gather has begun, and at the peak there is one layer too many.",
        "`del` all names of a layer's weights, slices too, before the next gather; or let a function's names end.",
    )
