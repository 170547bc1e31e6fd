"""What a rank's answer did in which order: data, for rules that look at the order of calls and never at the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpcourse.check.budget import Fault
from tpcourse.check.evidence import Evidence

Rule = Callable[[Evidence], Fault | None]
EARLY, OVERWRITTEN = "early", "overwritten"
"""Kinds of race: memory is read before what comes into it was waited for; written before what leaves it was."""


@dataclass(frozen=True)
class Moment:
    """A product [m, k] x [k, n] begins: the calls that had begun by then, and which of them were waited for."""

    m: int
    k: int
    n: int
    calls: tuple[tuple[str, bool], ...]

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.m * self.k * self.n

    def waited(self, op: str) -> list[bool]:
        """Of each call of an operation that had begun: whether it was waited for."""
        return [waited for name, waited in self.calls if name == op]


def moments(evidence: Evidence, rank: int) -> list[Moment]:
    """All products of a rank, in order."""
    return evidence.outcomes[rank].facts.get("moments", [])


def numbered(evidence: Evidence, rank: int, work: int) -> list[tuple[int, Moment]]:
    """Each product with the number of the piece that it begins with: pieces of `work` multiplications follow each
    other, in as many products as the answer likes.
    """
    found, done = [], 0
    for moment in moments(evidence, rank):
        found.append((done // work, moment))
        done += moment.work
    return found
