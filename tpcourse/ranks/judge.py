"""After a run: was it fine, stuck, dead, interrupted? Makes the report, repairs the ranks, returns what to raise."""

from __future__ import annotations

from bisect import bisect
from typing import Any

from tpcourse.ranks import show
from tpcourse.ranks.errors import (
    RankDied,
    RankError,
    RanksDisagree,
    RanksError,
    RanksInterrupted,
    RanksOutOfTime,
    RanksStuck,
)
from tpcourse.ranks.run import Run
from tpcourse.watch.words import call_text, ranks_text

INTERRUPT_S = 1.0


def judge(ranks: Any, run: Run, finished: bool, interrupted: bool = False) -> BaseException | None:
    """What this run has to raise, if anything; the ranks work again afterwards."""
    if interrupted:
        return _stopped(ranks, run)
    if not finished:
        return _stuck(ranks, run)
    errors = {rank: reply["error"] for rank, reply in run.replies.items() if reply["error"]}
    report = _disagreement(ranks, run)
    if broken := [rank for rank, error in errors.items() if error["fatal"]]:
        return _broken(ranks, run, broken, show.failures(errors, len(ranks)))
    if errors:
        if report or any(error["collective"] for error in errors.values()):
            ranks.meeting.again([])
        return RankError(show.failures(errors, len(ranks)))
    if report:
        ranks.meeting.again([])
        return RanksDisagree(str(report), report)
    return None


def _stuck(ranks: Any, run: Run) -> BaseException:
    from tpcourse.watch import diagnose

    report = diagnose(_states(ranks, run))
    kind = RankDied if run.died else RanksStuck
    words = {rank: text for rank in run.died if (text := ranks.cluster.last_words(rank))}
    said = [f"Last words of {ranks_text(who)}: {text}" for who, text in show.grouped(words)]
    if any("SIGABRT" in how or "SIGSEGV" in how for how in run.died.values()):
        said += _last_calls(ranks, run)  # C++ code ended the process: what it was in may not have been a wait
    return kind("\n".join([str(report), *said, _repair(ranks, run)]), report)


def _stopped(ranks: Any, run: Run) -> BaseException:
    """The interrupt button, or no time left: tell the ranks, report where they were, free those that do not return."""
    from tpcourse.watch import diagnose

    by = "Its time was up." if run.is_over else "You stopped the cell."
    report = diagnose(_states(ranks, run, interrupted=True), interrupted=True, stopped_by=by)
    for rank in run.targets:
        if not run.finished(rank):
            ranks.cluster.call(rank, "interrupt")
    run.moved, run.patience = _now(), INTERRUPT_S
    while not run.step() and _now() - run.moved < INTERRUPT_S:
        pass
    called = any(reply.get("fingerprints") for reply in run.replies.values())  # perhaps not begun on all ranks
    clean = all(run.finished(rank) for rank in run.targets) and not called
    note = "The ranks and their variables are unchanged." if clean else _repair(ranks, run)
    return (RanksOutOfTime if run.is_over else RanksInterrupted)(f"{report}\n{note}", report)


def _broken(ranks: Any, run: Run, broken: list[int], failures: str) -> BaseException:
    """An error that CUDA keeps for ever: say what the ranks called last, and give them new processes."""
    lines = _last_calls(ranks, run)
    run.died |= dict.fromkeys(broken, "its GPU does not answer any more")
    return RankError("\n".join([failures, *lines, _repair(ranks, run)]))


def _last_calls(ranks: Any, run: Run) -> list[str]:
    """A line a rank: the last three calls it began."""
    calls = [[f"{call_text(event)} ({event.line})" for event in mine[-3:]] for mine in events(ranks, run)]
    return ["Last calls:", *(f"  rank {rank}: {', '.join(mine) or 'none'}" for rank, mine in enumerate(calls))]


def _now() -> float:
    import time

    return time.monotonic()


def _repair(ranks: Any, run: Run) -> str:
    """Let the ranks meet again; says what was kept and what is gone."""
    silent = [rank for rank in run.targets if run.is_silent(rank)]
    try:
        gone = ranks.meeting.again(sorted(set(run.died) | set(silent)))
    except RanksError as lost:  # on other hosts nothing of ours can start them again
        ranks.stop()
        return str(lost)
    if not gone:
        return "The groups were made again; every rank kept its variables. The next cell works."
    cells = ", ".join(map(str, dict.fromkeys(number for _, number in ranks.history[:-1] if number)))
    again = f"Run cells {cells} again to make them." if cells else ""
    return f"The variables of {ranks_text(gone)} are gone: the process was started again. {again}".rstrip()


def _disagreement(ranks: Any, run: Run) -> Any:
    """Calls that ended and did not match, found by comparing short fingerprints first."""
    prints = [reply["fingerprints"] for reply in run.replies.values() if "fingerprints" in reply]
    if not differ(prints):
        return None
    from tpcourse.watch import disagreements

    return disagreements(events(ranks, run))


def differ(prints: list[dict[Any, Any]]) -> bool:
    """Whether two ranks' fingerprints of the same group are not equal."""
    seen: dict[Any, Any] = {}
    return any(seen.setdefault(key, value) != value for one in prints for key, value in one.items())


def events(ranks: Any, run: Run) -> list[list[Any]]:
    """The latest calls of every rank: from its file if it has one (it may be stuck or dead), else asked for."""
    from tpcourse.ledger import read_board

    found = []
    for rank in range(len(ranks)):
        path = ranks.cluster.board(rank)
        if path is not None:
            found.append(read_board(path))
        elif run.kind(rank) in ("dead", "silent"):
            found.append([])
        else:
            found.append(ranks.cluster.gather([ranks.cluster.call(rank, "events")], 5.0)[0])
    for event in (event for mine in found for event in mine):
        _name_cell(event, ranks.history)
    return found


def _name_cell(event: Any, history: list[tuple[float, int]]) -> None:
    """Say which earlier cell a line belongs to; the ledger wrote the line while that cell was the current one."""
    at = bisect([begin for begin, _ in history], event.begin_s) - 1
    if 0 <= at < len(history) - 1 and event.line and " of " not in event.line:
        event.line += f" of cell {history[at][1]}" if history[at][1] else " of an earlier call"


def _states(ranks: Any, run: Run, interrupted: bool = False) -> list[dict[str, Any]]:
    """What `watch.diagnose` reads, for every rank."""
    states = []
    for rank, happened in enumerate(events(ranks, run)):
        reply = run.replies.get(rank, {})
        state, error = reply.get("state", {}), reply.get("error")
        states.append({
            "rank": rank,
            "state": run.kind(rank) if rank in run.targets else "idle",
            "line": state.get("line") or (error or {}).get("place"),
            "events": happened,
            "error": f"{error['name']}: {error['message']}" if error else None,
            "exit": run.died.get(rank),
            "host": ranks.cluster.hosts[rank] if len(set(ranks.cluster.hosts)) > 1 else None,
            "seconds": None if interrupted else round(run.limit()),  # not measured, so that a report is always the same
        })  # fmt: skip
    return states
