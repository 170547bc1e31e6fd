"""From the ranks' states to the first point where they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tpcourse.watch.absent import explain_absence
from tpcourse.watch.circle import explain_circle
from tpcourse.watch.failure import ending_text, explain_failure
from tpcourse.watch.lost import explain_lost_host
from tpcourse.watch.mismatch import EQUAL_SIZES, compare_details, compare_operations, compare_pair, compare_tags
from tpcourse.watch.odd import explain_odd
from tpcourse.watch.order import explain_order
from tpcourse.watch.report import Fault, Report, report
from tpcourse.watch.rows import at, rows
from tpcourse.watch.silent import find_disagreement
from tpcourse.watch.views import Channel, View, World, latest_groups
from tpcourse.watch.words import call_text, listed, ranks_text, verb, where

State = Mapping[str, Any]


def diagnose(states: Sequence[State], interrupted: bool = False, stopped_by: str = "You stopped the cell.") -> Report:
    """Say why ranks wait: the first point where they differ, and what each last finished and waits in.

    With `interrupted` nothing has to be wrong, and `stopped_by` says what ended it.
    Shapes: one mapping per rank with rank, state, line, events, error, exit, host, seconds (see `View`).
    Trap: where the states allow two explanations, the sentence says what is the case, not why.
    """
    world = World([_view(state, interrupted) for state in states])
    fault = explain(world)
    if interrupted:
        sentence = f"{stopped_by} {fault.sentence[:1].upper()}{fault.sentence[1:]}"
        fault = replace(fault, sentence=sentence, hint="" if fault.kind == "computing" else fault.hint)
    seconds = max((state.get("seconds") or 0 for state in states), default=0)
    return report(fault, rows(world), seconds or None)


def _view(state: State, interrupted: bool) -> View:
    """A rank's state; an interrupt that reached it is not an error of its own."""
    events, now, error = list(state.get("events") or ()), state["state"], state.get("error")
    if interrupted and now == "raised" and (error or "").startswith("KeyboardInterrupt"):
        pending = any(event.end_s is None and not event.is_async for event in events)
        now, error = ("waiting" if pending else "running"), None
    idle = now == "idle"
    line, now = (None, "done") if idle else (state.get("line"), now)
    return View(state["rank"], now, line, latest_groups(events), error, state.get("exit"), idle, state.get("host"))


def explain(world: World) -> Fault:
    """The first explanation that fits: certain ones before those that time could still mend."""
    return (
        explain_lost_host(world)
        or explain_mismatch(world)
        or explain_failure(world)
        or explain_odd(world)
        or explain_absence(world, "done")
        or explain_circle(world)
        or explain_absence(world, "silent")
        or explain_absence(world, "running")
        or explain_absence(world, "waiting")
        or _finished_differently(world)
        or _in_general(world)
    )


def explain_mismatch(world: World) -> Fault | None:
    """The first call that met a different one and holds a rank up or ended it."""
    found: list[tuple[Any, Fault]] = []
    for place in world.board.calls:
        hit = _first_mismatch(world, place)
        if hit is not None:
            found.append(hit)
    if not found:
        return None
    counts = [sum(world.board.precedes(other[0], event) for other in found) for event, _ in found]
    event, fault = found[counts.index(min(counts))]
    ending = ending_text(world, event.group if event.peer is None else fault.ranks)
    return replace(fault, sentence=fault.sentence.removesuffix(".") + ending + ".")


def _first_mismatch(world: World, place: Channel) -> tuple[Any, Fault] | None:
    """The first number on a channel whose calls differ: in operation, or in detail where a rank is held."""
    by_rank = world.board.calls[place]
    for seq in sorted({seq for calls in by_rank.values() for seq in calls}):
        calls = world.board.at(place, seq)
        fault = _compare(world, place, calls) if len(calls) > 1 else None
        if fault is not None:
            first = next(iter(calls.values()))
            better = explain_order(world.board, place, seq) if len(place) == 2 else None
            return first, better or fault
    return None


def _compare(world: World, place: Channel, calls: dict[int, Any]) -> Fault | None:
    held = any(_held(world, event) for event in calls.values())
    if len(place) == 4:
        sent, received = calls[place[2]], calls[place[3]]
        return (compare_tags(sent, received) or compare_pair(sent, received)) if held else None
    fault = compare_operations(calls)
    if fault is not None or not held:
        return fault
    first = next(iter(calls.values()))
    everybody = set(first.group) == set(calls)
    return compare_details(calls) if everybody else compare_details(calls, EQUAL_SIZES)


def _held(world: World, event: Any) -> bool:
    """Whether a rank waits in a call or ended in it."""
    view = world.views[event.rank]
    if view.state in ("dead", "raised"):
        return event is view.events[-1]
    waits = view.state == "waiting" or (view.state == "running" and not event.is_async)
    return event.end_s is None and waits


def _finished_differently(world: World) -> Fault | None:
    """With ranks waiting and no other reason, calls that finished but did not agree."""
    return find_disagreement(world.board) if world.waiting() else None


def _in_general(world: World) -> Fault:
    """Who waits for whom, with no guess at the reason."""
    held = world.waiting()
    if not held:
        return _nobody_waits(world)
    calls: dict[str, list[tuple[int, Any]]] = {}
    for rank, events in held.items():
        calls.setdefault(call_text(events[0]), []).append((rank, events[0]))
    parts = []
    for call, found in calls.items():
        ranks, missing = [rank for rank, _ in found], world.missing(found[0][1])
        whom = f" for {ranks_text(missing)}" if missing else ", which has not finished"
        place = where(*(event for _, event in found))
        parts.append(f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} in {call}{place}{whom}")
    return Fault("waiting", f"{listed(parts)}.", tuple(held))


def _nobody_waits(world: World) -> Fault:
    """All compute, do not answer, or have finished."""
    views = sorted(world.views.values(), key=lambda view: view.rank)
    for state, one, many, kind in (
        ("silent", "does not answer", "do not answer", "silent"),
        ("waiting", "waits", "wait", "waiting"),
        ("running", "is computing", "are computing", "computing"),
    ):
        ranks = [view.rank for view in views if view.state == state]
        lines = {view.line for view in views if view.state == state}
        if ranks:
            place = at(lines.pop()) if len(lines) == 1 else ""
            tail = " in a call that is not a collective" if state == "waiting" else ""
            what = f"{ranks_text(ranks)} {verb(ranks, one, many)}{place}{tail}"
            return Fault(kind, f"no rank waits for another: {what}.", tuple(ranks))
    return Fault("finished", "no rank waits: every rank has finished.", ())
