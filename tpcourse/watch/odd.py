"""The first call at which a few ranks leave the programme that all ranks have in common."""

from collections import Counter
from typing import Any

from tpcourse.watch.circle import find_circle
from tpcourse.watch.mismatch import Calls
from tpcourse.watch.report import Fault
from tpcourse.watch.views import World
from tpcourse.watch.words import PAIR_OPS, call_text, ranks_text, where


def programmes(world: World) -> dict[int, list[Any]]:
    """Each rank's collectives, cut so that all start at the same call where a rank's history is shortened."""
    calls = {r: [e for e in view.events if e.op not in PAIR_OPS] for r, view in world.views.items()}
    firsts: dict[str, int] = {}
    axes = {event.label for events in calls.values() for event in events}
    for rank in world.board.truncated:
        for axis in axes:
            first = min((event.seq for event in calls[rank] if event.label == axis), default=10**12)
            firsts[axis] = max(first, firsts.get(axis, 0))
    return {r: [e for e in events if e.seq >= firsts.get(e.label, 0)] for r, events in calls.items()}


def first_difference(calls: dict[int, list[Any]]) -> Calls:
    """The ranks' calls at the first place where axis or operation differ; empty if they never do."""
    for place in range(max(map(len, calls.values()), default=0)):
        here = {rank: events[place] for rank, events in calls.items() if len(events) > place}
        if len({(event.label, event.op) for event in here.values()}) > 1:
            return here
    return {}


def explain_odd(world: World) -> Fault | None:
    """Name the ranks that made the common call on another group.

    Trap: a circle of waits looks the same when two calls are swapped; then only an equal line tells.
    """
    here = first_difference(programmes(world))
    if len(here) < 3:
        return None
    (axis, op), count = Counter((event.label, event.op) for event in here.values()).most_common(1)[0]
    usual = {rank: event for rank, event in here.items() if (event.label, event.op) == (axis, op)}
    odd = {rank: event for rank, event in here.items() if rank not in usual}
    if 2 * count <= len(here) or not _same_but_group(odd, next(iter(usual.values()))):
        return None
    if not _reaches_others(odd, set(here)) or not _waited_for(world, usual, set(odd)):
        return None
    if not _certain(world, odd, usual):
        return None
    first, common = next(iter(odd.values())), next(iter(usual.values()))
    sentence = (
        f"{ranks_text(odd)} called {call_text(first)}{where(*odd.values())} where {ranks_text(usual)} "
        f"called {call_text(common)}{where(*usual.values())}."
    )
    return Fault("other group", sentence, tuple(odd))


def _same_but_group(odd: Calls, usual: Any) -> bool:
    """Equal in all but the group, and all odd ranks on one axis."""
    wanted = (usual.op, usual.numel, usual.dtype)
    equal = all((event.op, event.numel, event.dtype) == wanted for event in odd.values())
    return equal and len({event.label for event in odd.values()}) == 1


def _reaches_others(odd: Calls, here: set[int]) -> bool:
    """Whether the odd group has members that made the common call instead, and none that is not there yet."""
    groups = [set(event.group) for event in odd.values()]
    return all(group - set(odd) and group <= here for group in groups)


def _waited_for(world: World, usual: Calls, odd: set[int]) -> bool:
    """Whether a rank still waits in the common call for one of the odd ranks."""
    held = world.waiting()
    stuck = [event for rank, event in usual.items() if event in held.get(rank, ())]
    return any(odd & set(world.missing(event)) for event in stuck)


def _certain(world: World, odd: Calls, usual: Calls) -> bool:
    if {event.line for event in odd.values()} == {event.line for event in usual.values()}:
        return True
    waits = [event for rank in odd for event in world.waits(rank)]
    gone = any(world.views[rank].state == "done" for event in waits for rank in world.missing(event))
    return gone or not find_circle(world)
