"""Exercises on memory: the answer runs in each rank on a trial of its own, and its bytes are counted there."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpcourse.check.calls import sentence_of
from tpcourse.check.report import FAILED, NOT_JUDGED, PASSED, Line, Verdict
from tpcourse.check.spec import MOST_RANKS
from tpcourse.ranks.errors import RanksError, RanksInterrupted

WEIGHINGS = {
    "model_states": "lesson03.model_states",
    "saved_bytes": "lesson03.saved_bytes",
    "selective_recompute": "lesson03.selective_recompute",
    "train_steps": "lesson03.train_steps",
}
START = "Write the answer in the cell above, run it, and run this cell again."
SENT = "nothing is sent: each rank counts for itself"
Facts = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """One line of the check: its name, what it says when it passes, and the fault in a trial's facts ("" if
    none).
    """

    name: str
    text: str
    fault: Callable[[Facts], str]


@dataclass(frozen=True)
class Mistake:
    """A wrong idea: how it shows in the facts of a trial that failed, what it is, and the way out of it."""

    shows: Callable[[Facts], bool]
    sentence: str
    hint: str


@dataclass(frozen=True)
class Weighing:
    """All that a check knows of one exercise.

    `make` draws the arguments of a trial, plain data; `probe` is the module whose `probe(answer, device,
    **arguments)` runs in the rank and returns facts: what the answer gave, what is right, what was held, and
    the budget. The first axis is that of the values.
    """

    name: str
    probe: str
    make: Callable[[np.random.Generator, int], dict[str, Any]]
    axes: tuple[Axis, ...]
    mistakes: tuple[Mistake, ...]
    num_cases: int = 2


BORROWED = Mistake(
    lambda facts: bool(facts.get("borrowed")),
    "The answer calls the course's own version; this exercise writes it.",
    "The lesson shows its source: write what it does, in your own words.",
)
NOT_RETURNED = Mistake(
    lambda facts: "result" in facts and facts["result"] is None,
    "The answer returns nothing: is a `return` missing?",
    "Return what the task asks for, on every rank.",
)


def find_weighing(name: str) -> Weighing:
    """The exercise of this name."""
    return importlib.import_module(f"tpcourse.check.{WEIGHINGS[name]}").EXERCISE


def weigh(ranks: Any, spec: Weighing) -> Verdict:
    """Run all trials, another on each rank, and judge them axis by axis."""
    generator = np.random.default_rng(secrets.randbits(64))
    size = min(MOST_RANKS, len(ranks))
    trials: list[Facts] = []
    for case in range(spec.num_cases):
        arguments = [spec.make(generator, case) for _ in range(size)]
        try:
            found = ranks.run(in_rank, spec.name, spec.probe, arguments)
        except RanksInterrupted:
            raise
        except RanksError as error:
            found = [{"error": sentence_of(error), "rank": None}]
        trials += [{"rank": rank, **facts} for rank, facts in enumerate(found) if facts is not None]
        if any("stubbed" in facts or "error" in facts for facts in trials):
            break
    return judge(spec, trials)


def in_rank(name: str, probe: str, arguments: list[dict[str, Any]]) -> Facts | None:
    """Runs in the rank: its trial, if it has one."""
    run = importlib.import_module("tpcourse.check.lesson03.in_rank").run
    return run(name, f"tpcourse.check.{probe}", arguments)


def judge(spec: Weighing, trials: Sequence[Facts]) -> Verdict:
    """A line for each axis, and the first wrong idea that shows in every trial that failed."""
    if any("stubbed" in facts for facts in trials):
        return Verdict(spec.name, hint=START, started=False)
    values, *others = spec.axes
    lines = [_line(values, trials), _line(Axis("communication", SENT, _sent), trials)]
    lines += [_line(axis, trials) for axis in others]
    verdict = Verdict(spec.name, lines)
    failed = [
        facts for facts in trials if any(_fault(axis, facts) for axis in (*spec.axes, Axis("", "", _sent)))
    ]
    known = (BORROWED, *spec.mistakes, NOT_RETURNED)
    likely = next((mistake for mistake in known if failed and all(mistake.shows(f) for f in failed)), None)
    if likely:
        verdict.why, verdict.hint = likely.sentence, likely.hint
    return verdict


def _line(axis: Axis, trials: Sequence[Facts]) -> Line:
    raised = next((facts for facts in trials if "error" in facts), None)
    if raised is not None:
        who = "" if raised["rank"] is None else f"rank {raised['rank']} raised "
        text = f"{who}{raised['error'][:300]}"
        return (
            Line(axis.name, FAILED, text)
            if axis.name == "values"
            else Line(axis.name, NOT_JUDGED, NOT_JUDGED)
        )
    found = next((facts for facts in trials if axis.fault(facts)), None)
    if found is None:
        return Line(axis.name, PASSED, axis.text)
    return Line(axis.name, FAILED, f"rank {found['rank']}: {axis.fault(found)}")


def _fault(axis: Axis, facts: Facts) -> str:
    return facts["error"] if "error" in facts else axis.fault(facts)


def _sent(facts: Facts) -> str:
    sent = facts.get("sent", ())
    return f"calls {', '.join(sent)}; nothing has to be sent" if sent else ""


def same_counts(facts: Facts) -> str:
    """The fault of counts that must be equal: a number, or a dict of kind -> number."""
    got, right = facts["result"], facts["right"]
    if facts.get("borrowed"):
        return calls(facts)
    if not isinstance(right, dict):
        return _counted("", got, right)
    if not isinstance(got, dict):
        return f"a dict with {', '.join(right)} was expected, not {got!r}"[:200]
    faults = (_counted(f"{kind}: ", got.get(kind), right[kind]) for kind in right)
    return next((fault for fault in faults if fault), "")


def calls(facts: Facts) -> str:
    """The fault of an answer that calls the course's own version."""
    return f"calls {facts['borrowed']}; this exercise writes it" if facts.get("borrowed") else ""


def _counted(name: str, got: Any, right: int) -> str:
    is_number = isinstance(got, int | float) and not isinstance(got, bool)
    if is_number and got == right:
        return ""
    found = f"{got:,} bytes" if is_number else repr(got)[:60]
    return f"{name}{found} instead of {right:,}"


def gives(name: str) -> Callable[[Facts], bool]:
    """Shows where the result is the one that this wrong idea gives, as the probe computed it."""

    def shows(facts: Facts) -> bool:
        if "error" in facts or facts["result"] == facts["right"]:
            return False
        return facts["result"] in facts["wrong"].get(name, ())

    return shows


def within(facts: Facts) -> str:
    """The fault of bytes held against the budget."""
    if facts["held"] <= facts["budget"]:
        return ""
    return f"{facts['held']:,} bytes are held, the budget is {facts['budget']:,}"
