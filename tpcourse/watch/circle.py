"""Ranks that wait for each other in a circle."""

from collections import deque
from typing import Any

from tpcourse.watch.report import Fault
from tpcourse.watch.views import World, channel
from tpcourse.watch.words import PAIR_OPS, call_text, listed, ranks_text, verb, where

SENDS_HINT = "Let one side receive while the other sends, or start both with batch_isend_irecv."


def find_circle(world: World) -> list[int]:
    """The shortest circle of waits, from its smallest rank; empty if there is none."""
    best: list[int] = []
    for start in world.waiting():
        found = _back_to(world, start)
        if found and (not best or len(found) < len(best)):
            best = found
    turn = best.index(min(best)) if best else 0
    return best[turn:] + best[:turn]


def _back_to(world: World, start: int) -> list[int]:
    """The shortest way of waits from a rank back to itself."""
    paths = deque([[start]])
    seen = set()
    while paths:
        path = paths.popleft()
        for rank in world.blockers(path[-1]):
            if rank == start:
                return path
            if rank not in seen and world.waits(rank):
                seen.add(rank)
                paths.append([*path, rank])
    return []


def circle_text(ranks: list[int]) -> str:
    """Write a circle: "0 -> 1 -> 2 -> 0"; a long one is shortened in the middle."""
    names = [str(rank) for rank in [*ranks, ranks[0]]]
    if len(names) > 10:
        names = [*names[:5], "...", *names[-3:]]
    return " -> ".join(names)


def explain_circle(world: World) -> Fault | None:
    """Name the circle and the call each of its ranks waits in."""
    ranks = find_circle(world)
    if not ranks:
        return None
    after = dict(zip(ranks, ranks[1:] + ranks[:1], strict=True))
    events = {rank: _towards(world, rank, after[rank]) for rank in ranks}
    ops = {event.op for event in events.values()}
    if ops <= set(PAIR_OPS):
        return _pairs(ranks, events, ops)
    crosswise = not ops & set(PAIR_OPS) and len(set(map(channel, events.values()))) > 1
    return _crosswise(ranks, events) if crosswise else _mixed(ranks, events)


def _towards(world: World, rank: int, other: int) -> Any:
    return next(event for event in world.waits(rank) if other in world.missing(event))


def _pairs(ranks: list[int], events: dict[int, Any], ops: set[str]) -> Fault:
    """Everybody sends, everybody receives, or two ends that name other ranks."""
    if len(ops) == 1:
        op, first = ops.pop(), events[ranks[0]]
        what = "send first and none receives" if op == "send" else "receive first and none sends"
        names = f"{ranks_text(ranks)} all {what}{where(*(events[rank] for rank in sorted(ranks)))}"
        hint = SENDS_HINT if op == "send" else "Let one rank send before it receives."
        sentence = f"{names}: on {first.label} they wait in a circle {circle_text(ranks)}."
        return Fault("cycle", sentence, tuple(ranks), hint)
    for a, b in zip(ranks, ranks[1:] + ranks[:1], strict=True):
        if events[a].op != events[b].op:
            return _names_another(ranks, events[a], events[b])
    return _mixed(ranks, events)


def _names_another(ranks: list[int], event: Any, half: Any) -> Fault:
    """One end names the other, which names a third rank or another group."""
    acts = {"send": "sends to rank {}", "recv": "receives from rank {}"}
    texts = [f"rank {e.rank} {acts[e.op].format(e.peer)} on {e.label}{where(e)}" for e in (event, half)]
    if half.peer == event.rank:
        sentence = f"{texts[0]} while {texts[1]}."
        return Fault("other group", sentence, (event.rank, half.rank), "A send and its receive need one group.")
    end = "one of them names the wrong peer, or calls in another order"
    return Fault("wrong peer", f"{texts[0]} while {texts[1]}: {end} ({circle_text(ranks)}).", tuple(ranks))


def _crosswise(ranks: list[int], events: dict[int, Any]) -> Fault:
    """Two or more groups used in different orders."""
    axes = list(dict.fromkeys(events[rank].label for rank in sorted(ranks)))
    names = " and ".join(axes[:3]) if len(axes) > 1 else f"groups of {axes[0]}"
    sentence = (
        f"{names} are used crosswise: {listed(_parts(events, 'already in'))}, "
        f"so they wait in a circle {circle_text(ranks)}."
    )
    return Fault("crosswise", sentence, tuple(ranks))


def _mixed(ranks: list[int], events: dict[int, Any]) -> Fault:
    sentence = f"{ranks_text(ranks)} wait in a circle {circle_text(ranks)}: {listed(_parts(events, 'in'))}."
    return Fault("cycle", sentence, tuple(ranks))


def _parts(events: dict[int, Any], word: str) -> list[str]:
    """Who is in which call, equal calls together."""
    calls: dict[str, list[int]] = {}
    for rank in sorted(events):
        calls.setdefault(call_text(events[rank]), []).append(rank)
    return [
        f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} {word} {call}{where(*(events[r] for r in ranks))}"
        for call, ranks in calls.items()
    ]
