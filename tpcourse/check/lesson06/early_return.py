"""A rank without tokens that returns before the others have made their calls."""

from __future__ import annotations

from tpcourse.check.evidence import RETURNED, RUNNING
from tpcourse.check.misconceptions import Finding, Misconception
from tpcourse.dims import split_sizes


def _shows(finding: Finding) -> bool:
    """All ranks without tokens have returned with fewer calls than the others, which go on and raise nothing."""
    evidence = finding.evidence
    sizes = split_sizes(evidence.case.sizes["T"], evidence.p)
    pairs = list(zip(sizes, evidence.outcomes, strict=True))
    empty = [outcome for size, outcome in pairs if not size]
    others = [outcome for size, outcome in pairs if size]
    if not empty or not evidence.failure or any(o.state != RETURNED for o in empty):
        return False
    most = max(len(outcome.events) for outcome in empty)
    return all(o.state == RUNNING and len(o.events) > most for o in others)


EARLY_RETURN = Misconception(
    "early return",
    _shows,
    "A rank without tokens returns with fewer calls than the others, and they wait for it.",
    "A collective needs every rank of the group: one with no token makes the same calls, with tensors of no element.",
)
