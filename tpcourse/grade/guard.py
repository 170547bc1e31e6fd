"""What the judge's kernel has more than a notebook's: it reads plain data only, keeps time, and notes each verdict.

No student's code runs in this kernel. `install` is called by a start-up file of its private IPython folder.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tpcourse.grade import intact, plain, witness

REPLACED = (
    "The answer replaces functions of the course, of torch or of Python: {names}. A check counts for nothing then.",
    "Leave them as they are, and write the answer with them.",
)


HIDDEN = (
    "The ranks did more than the ledger of the check knows: {calls}. What was sent cannot be counted then.",
    "Call `torch.distributed` or `tpcourse.wire` with the groups that you were given, and leave the ledger as it is.",
)


class Guard:
    """One for a kernel."""

    def __init__(self, folder: Path, cell_s: float) -> None:
        self.folder, self.cell_s = folder, cell_s
        self.timer: threading.Timer | None = None
        self.pids: list[int] = []
        self.intact: intact.Intact | None = None
        self.figures: list[dict[str, Any]] = []
        self.noted: dict[int, list[Any]] = defaultdict(list)  # the ledger of each rank
        self.late = self.lost = False
        self.cell = -1  # the place of the cell that runs

    def note(self, **values: Any) -> None:
        """A line of JSON for the verdict."""
        with (self.folder / "verdicts.jsonl").open("a", encoding="utf-8") as notes:
            notes.write(json.dumps(values) + "\n")

    def before_cell(self, info: Any) -> None:
        """Start the clock; ranks that are new are as they should be: remember them. Without ranks nothing is judged."""
        if self.lost:
            os._exit(0)
        self.late = False
        self.cell += 1
        self.timer = threading.Timer(self.cell_s, self._time_is_up)
        self.timer.daemon = True
        ranks = _running()
        if ranks and ranks.cluster.pids != self.pids:
            self.pids, self.intact = list(ranks.cluster.pids), intact.Intact(ranks)
        self.timer.start()

    def after_cell(self, result: Any) -> None:
        """Stop the clock; say so if ranks were lost, with what the official cells had told them, or time was up."""
        if self.timer:
            self.timer.cancel()
        ranks, error = _running(), result.error_in_exec
        self.lost |= bool(self.pids) and (ranks is None or ranks.cluster.pids != self.pids)
        self.lost |= bool(self.pids) and error is not None and not isinstance(error, _usual_errors())
        if self.lost or self.late:
            self.note(cell=self.cell, renewed=self.lost, late=self.late)

    def _time_is_up(self) -> None:
        self.late = True
        os.kill(os.getpid(), signal.SIGINT)

    def exercise(self, ranks: Any, name: str) -> None:
        """The official check, with a look at the ranks' functions before and after it."""
        from tpcourse.check import runner
        from tpcourse.check.calculation import CALCULATIONS  # its check measures the ranks itself
        from tpcourse.check.report import FAILED, Line, Verdict

        self.figures, self.noted = [], defaultdict(list)
        broken, hidden = self._replaced(ranks, roads=1), ""
        if not broken:
            before = witness.calls_of(ranks)
            runner.exercise(ranks, name)
            broken = self._replaced(ranks)
            hidden = self._hidden(before, witness.calls_of(ranks)) if name not in CALCULATIONS else ""
        if broken or hidden:
            self.lost = True  # the rest of the notebook needs other ranks
            why, hint = REPLACED if broken else HIDDEN
            why = why.format(names=", ".join(broken[:5]), calls=hidden)
            Verdict(name, [Line("values", FAILED, "not judged")], why=why, hint=hint).conclude()

    def _hidden(self, before: list[witness.Calls], after: list[witness.Calls]) -> str:
        """What torch counted in some rank and its ledger did not."""
        pairs = enumerate(zip(before, after, strict=True))
        found = {rank: witness.hidden(begin, end, self.noted[rank]) for rank, (begin, end) in pairs}
        return next((f"rank {rank} {text}" for rank, text in found.items() if text), "")

    def _replaced(self, ranks: Any, roads: int = 2) -> list[str]:
        if self.intact is None or ranks.cluster.pids != self.pids:
            return []
        return self.intact.differences(roads)

    def concluded(self, verdict: Any) -> None:
        """Note a verdict as it is shown."""
        lines = [asdict(line) for line in verdict.lines]
        found = {"title": verdict.title, "state": verdict.state, "lines": lines, "text": str(verdict)}
        self.note(cell=self.cell, **found, why=verdict.why, hint=verdict.hint, figures=self.figures)


def install() -> None:
    """Put the guard into this kernel."""
    from IPython import get_ipython

    from tpcourse import check
    from tpcourse.check import report
    from tpcourse.grade import calculations

    shell: Any = get_ipython()
    guard = Guard(Path(os.environ["TPCOURSE_GRADE"]), float(os.environ["TPCOURSE_CELL_S"]))
    plain.install()
    calculations.install()
    shell.events.register("pre_run_cell", guard.before_cell)
    shell.events.register("post_run_cell", guard.after_cell)
    check.exercise = guard.exercise
    _before(report.Verdict, "conclude", guard.concluded)
    _note_figures(guard)


def _note_figures(guard: Guard) -> None:
    """Let the guard see the evidence of each check before it is judged."""
    from tpcourse.check import runner

    judge = runner.judge

    def noting(spec: Any, cases: list[Any]) -> Any:
        guard.figures.extend(map(figures_of, cases))
        for evidence in cases:
            for rank, outcome in zip(evidence.case.members, evidence.outcomes, strict=True):
                guard.noted[rank] += outcome.events
        return judge(spec, cases)

    runner.judge = noting


def _before(owner: Any, name: str, first: Callable[[Any], None]) -> None:
    usual = getattr(owner, name)

    def both(self: Any) -> Any:
        first(self)
        return usual(self)

    setattr(owner, name, both)


def figures_of(evidence: Any) -> dict[str, Any]:
    """What the ranks of a case sent: calls by operation and bytes carried, the most of any rank."""
    from tpcourse.check.budget import carried_bytes

    calls: dict[str, int] = {}
    most = 0
    for outcome in evidence.outcomes:
        own: dict[str, int] = {}
        for event in outcome.events:
            own[str(event.op)] = own.get(str(event.op), 0) + 1
        calls = {op: max(calls.get(op, 0), own.get(op, 0)) for op in {*calls, *own}}
        most = max(most, sum(carried_bytes(event) for event in outcome.events))
    return {"case": str(evidence.case), "calls": dict(sorted(calls.items())), "carried_bytes": most}


def _usual_errors() -> tuple[type[BaseException], ...]:
    """What a wrong answer raises; anything else is the end of these ranks."""
    from tpcourse.check import CheckFailed
    from tpcourse.ranks.errors import RanksError

    return CheckFailed, RanksError


def _running() -> Any:
    from tpcourse.ranks.api import running

    return running()[0] if running() else None
