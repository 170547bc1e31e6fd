"""The verdict of a check and the one block of text that shows it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

PASSED, FAILED, BLOCKED, NOT_STARTED, NOT_JUDGED = "passed", "failed", "blocked", "not started", "not judged"
_MARKS = {PASSED: "✓", FAILED: "✗", BLOCKED: "-", NOT_JUDGED: "·"}
_WIDTH = 110
_MOST_LINES = 8
_LABEL = 15


class CheckFailed(Exception):
    """A check found a fault; the message is the whole feedback, shown without a traceback.

    Raises: by `check.exercise` and `check.same`, so that a notebook stops at an answer that is wrong.
    """

    def __init__(self, text: str, state: str = FAILED) -> None:
        super().__init__(text)
        self.state = state

    def __reduce__(self) -> tuple[type[CheckFailed], tuple[str, str]]:
        return CheckFailed, (str(self), self.state)

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


@dataclass(frozen=True)
class Line:
    """One axis of a check: its name, its state and what was found."""

    axis: str
    state: str
    text: str


@dataclass
class Verdict:
    """What a check found on all axes; `why` names the likely misconception and `hint` the way out of it."""

    title: str
    lines: list[Line] = field(default_factory=list)
    why: str = ""
    hint: str = ""
    started: bool = True
    printed: str = ""  # by the answer, in the ranks; shown where it failed

    @property
    def state(self) -> str:
        """Failed unless every judged axis passed; an axis that this machine cannot judge does not fail."""
        if not self.started:
            return NOT_STARTED
        judged = [line.state for line in self.lines if line.state != BLOCKED]
        return PASSED if judged and all(state == PASSED for state in judged) else FAILED

    def __str__(self) -> str:
        rows = [(line.axis, f"{_MARKS[line.state]} ", line.text) for line in self.lines]
        rows += [(label, "", text) for label, text in (("why", self.why), ("hint", self.hint)) if text]
        printed = [_printed(self.printed)] if self.printed.strip() and self.state == FAILED else []
        return "\n".join([f"{self.title}: {self.state}", *(_row(*row) for row in rows), *printed])

    def conclude(self) -> None:
        """Print the block if the check passed, raise it as `CheckFailed` if it did not."""
        if self.state != PASSED:
            raise CheckFailed(str(self), self.state)
        print(self)


def _printed(text: str) -> str:
    """The last lines of what ranks printed, as they are but for their length."""
    lines = text.rstrip().splitlines()
    more = [f"... {len(lines) - _MOST_LINES} lines"] if len(lines) > _MOST_LINES else []
    shown = [line[: _WIDTH - _LABEL] for line in [*more, *lines[-_MOST_LINES:]]]
    return "\n".join(f"  {label:<{_LABEL}}{line}" for label, line in zip(["printed"] + [""] * len(shown), shown))


def _row(label: str, mark: str, text: str) -> str:
    first = f"  {label:<{_LABEL}}{mark}"
    rest = " " * len(first)
    paragraphs = text.splitlines() or [""]
    wrapped = [textwrap.fill(paragraphs[0], _WIDTH, initial_indent=first, subsequent_indent=rest)]
    wrapped += [textwrap.fill(line, _WIDTH, initial_indent=rest, subsequent_indent=rest) for line in paragraphs[1:]]
    return "\n".join(wrapped)
