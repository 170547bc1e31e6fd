"""What one case of a check asks for, and what the ranks did: plain data that travels between ranks and notebook."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tpcourse.check.compare import agree, first_difference

RETURNED, RAISED, STUBBED, RUNNING = "returned", "raised", "stubbed", "running"


@dataclass(frozen=True)
class Case:
    """One set-up of a check: which ranks take part, in which groups, and with which sizes.

    `groups` maps the name of a group argument to the groups that the ranks are in, in the order of the answer's
    arguments; the groups of one name do not share a rank. An `edge` case is about its very sizes: they never change.
    """

    members: tuple[int, ...]
    groups: dict[str, tuple[tuple[int, ...], ...]]
    sizes: dict[str, Any] = field(default_factory=dict)
    edge: bool = False

    @property
    def p(self) -> int:
        return len(self.members)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {value}" for name, value in self.sizes.items())
        return f"{self.p} ranks, {sizes}" if sizes else f"{self.p} ranks"


@dataclass
class Outcome:
    """What one rank's answer did: its result as NumPy arrays, with the facts that a copy would lose."""

    state: str = RUNNING
    result: Any = None
    kinds: tuple[tuple[str, str], ...] = ()
    changed: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    error: str = ""
    line: str = ""  # of the learner's cell, where it raised
    borrowed: str = ""
    device: str = "cpu"
    log: Any = None
    unwaited: list[str] = field(default_factory=list)  # operations that the answer began and never waited for
    facts: dict[str, Any] = field(default_factory=dict)  # what an exercise's probe saw

    @property
    def events(self) -> list[Any]:
        return [] if self.log is None else list(self.log.events)

    @property
    def sends(self) -> list[Any]:
        return [event for event in self.events if event.op == "send"]


@dataclass
class Evidence:
    """A case with the inputs, the expected results and the outcome of each of its ranks, in group order."""

    case: Case
    inputs: list[dict[str, Any]]
    expected: list[Any]
    outcomes: list[Outcome]
    failure: str = ""
    failure_kind: str = ""

    @property
    def p(self) -> int:
        return self.case.p

    @property
    def outputs(self) -> list[Any]:
        return [outcome.result for outcome in self.outcomes]

    @property
    def finished(self) -> bool:
        return not self.failure and all(outcome.state == RETURNED for outcome in self.outcomes)

    @property
    def right(self) -> bool:
        return self.finished and self.gives(self.expected)

    def gives(self, outputs: list[Any]) -> bool:
        """Whether the ranks returned exactly these results, up to rounding."""
        return len(outputs) == self.p and all(agree(a, b) for a, b in zip(self.outputs, outputs, strict=True))

    def would_give(self, outputs: list[Any]) -> bool:
        """Whether the ranks returned these results and the right answer is another one."""
        differs = any(first_difference(a, b) for a, b in zip(outputs, self.expected, strict=True))
        return self.finished and differs and self.gives(outputs)
