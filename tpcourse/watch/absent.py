"""A call that some ranks wait in and others, which do not wait themselves, have not made."""

from collections.abc import Sequence
from typing import Any

from tpcourse.watch.report import Fault
from tpcourse.watch.rows import at, doing
from tpcourse.watch.views import Board, World, channel
from tpcourse.watch.words import PAIR_OPS, call_text, line_text, ranks_text, verb, where

KINDS = {"done": "skipped call", "running": "computing", "silent": "silent", "waiting": "waiting"}


def first_of(board: Board, events: Sequence[Any]) -> list[Any]:
    """Put events in the order in which some rank made them, as far as any rank shows it."""
    return sorted(events, key=lambda event: sum(board.precedes(other, event) for other in events))


def explain_absence(world: World, state: str) -> Fault | None:
    """Name the ranks in one state that a waiting rank waits for, at the first such call."""
    calls: dict[tuple[Any, int], Any] = {}
    for events in world.waiting().values():
        for event in events:
            if _absent(world, event, state):
                calls.setdefault((channel(event), event.seq), event)
    if not calls:
        return None
    event = first_of(world.board, list(calls.values()))[0]
    missing = _absent(world, event, state)
    if event.op in PAIR_OPS:
        return _one_sided(world, event, missing, state)
    return _collective(world, event, missing, state)


def _absent(world: World, event: Any, state: str) -> list[int]:
    return [r for r in world.missing(event) if world.views[r].state == state and not world.waits(r)]


def _collective(world: World, event: Any, missing: list[int], state: str) -> Fault:
    """One of three forms: a loop made once too few, a call made by a few only, a call not made."""
    joined = [rank for rank in event.group if rank not in world.missing(event)]
    what = doing([world.views[rank] for rank in missing])
    if state == "done" and len(joined) < len(world.missing(event)):
        text = f"only {ranks_text(joined)} called {call_text(event)}{where(event)}: {ranks_text(missing)} "
        return Fault("skipped call", f"{text}{what.split(' ', 1)[1]} without it.", tuple(joined))
    if state == "done" and _is_loop(world, event, missing):
        made = world.board.count(channel(event), missing[0])
        text = (
            f"{ranks_text(missing)} {verb(missing, 'has', 'have')} made {made} {event.op} calls on "
            f"{event.label}, the others {event.seq}: {what} without {event.op} #{event.seq}{where(event)}."
        )
        return Fault("skipped call", text, tuple(missing))
    never = "never called" if state == "done" else f"{verb(missing, 'has', 'have')} not called"
    held = [rank for rank in joined if rank in world.waiting()]
    waits = f"{ranks_text(held)} {verb(held, 'waits', 'wait')}{at(line_text(event))}"
    text = f"{ranks_text(missing)} {never} {call_text(event)}: {what}, while {waits}."
    return Fault(KINDS[state], text, tuple(missing))


def _is_loop(world: World, event: Any, missing: list[int]) -> bool:
    """Whether the call was made over and over from one line, and the missing ranks made one fewer."""
    calls = world.board.calls[channel(event)][event.rank].values()
    short = {world.board.count(channel(event), rank) for rank in missing}
    same = {(call.op, call.line) for call in calls} == {(event.op, event.line)}
    return same and short == {event.seq - 1} and event.seq > 2


def _one_sided(world: World, event: Any, missing: list[int], state: str) -> Fault:
    """A send nobody receives or a receive nobody sends; a wrong peer where a third rank has the other half."""
    what = doing([world.views[rank] for rank in missing])
    act, past = ("receives", "received") if event.op == "send" else ("sends", "sent")
    never = f"never {act} it" if state == "done" else f"{verb(missing, 'has', 'have')} not {past} it"
    start = f"rank {event.rank} waits in {call_text(event)}{where(event)}, but {ranks_text(missing)} {never}: {what}"
    if state != "done":
        return Fault(KINDS[state], f"{start}.", tuple(missing))
    half = counterpart(world, event)
    if half is not None:
        also = f"rank {half.rank} waits in {call_text(half)}{where(half)}"
        return Fault("wrong peer", f"{start}, while {also}.", (event.rank, half.rank, *missing))
    kind = "send without receive" if event.op == "send" else "receive without send"
    return Fault(kind, f"{start}.", (event.rank, *missing))


def counterpart(world: World, event: Any) -> Any | None:
    """The one unmatched call of a third rank that names this rank and would fit; None if none or several do."""
    wanted = ("recv" if event.op == "send" else "send", event.rank, event.numel, event.dtype)
    calls = [half for events in world.waiting().values() for half in events]
    found = [half for half in calls if (half.op, half.peer, half.numel, half.dtype) == wanted and world.missing(half)]
    return found[0] if len(found) == 1 else None
