"""A rank that raised or died while others wait for it."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from tpcourse.watch.report import Fault
from tpcourse.watch.rows import at, error_text, exit_text
from tpcourse.watch.views import View, World
from tpcourse.watch.words import call_text, ranks_text, verb, where

SECONDARY = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|socket closed|timed? ?out|RanksStuck|aborted"
    r"|remote process (has )?(exited|terminated)|application timeout|peer (has )?(closed|exited)",
    re.IGNORECASE,
)
MOST_CALLS = 3


def failed(world: World) -> list[View]:
    """Ranks that died or raised first-hand; an error such as a closed connection only follows."""
    ended = [view for view in world.views.values() if view.state in ("dead", "raised")]
    first_hand = [view for view in ended if view.state == "dead" or not SECONDARY.search(view.error or "")]
    return sorted(first_hand or ended, key=lambda view: (view.state != "dead", view.rank))


def explain_failure(world: World) -> Fault | None:
    """Name the ranks that died, or else those that raised, and who waits for them."""
    found = failed(world)
    if not found:
        return None
    first = found[0]
    same = [view for view in found if _cause(view) == _cause(first)]
    ranks = tuple(view.rank for view in same)
    return Fault(_kind(first), f"{_what(same)}{waiters_text(world, ranks)}.", ranks)


def _kind(view: View) -> str:
    return "died" if view.state == "dead" else "raised"


def _cause(view: View) -> tuple[str, str, str | None]:
    return (view.state, exit_text(view) if view.state == "dead" else error_text(view), view.line)


def _what(views: Sequence[View]) -> str:
    """ "rank 1 raised ValueError: no at line 5"; "rank 1 died at line 5: exit code 3"."""
    first, names = views[0], ranks_text(view.rank for view in views)
    if first.state == "dead":
        return f"{names} died{at(first.line)}: {exit_text(first)}"
    text = error_text(first).rstrip(".")
    return f"{names} raised {text}" + (f" ({first.line})" if first.line else "")


def waiters_text(world: World, ranks: Sequence[int], others: Callable[[Any], list[int]] | None = None) -> str:
    """Say who waits for these ranks: "; ranks 0, 2 wait for it in all_reduce #7 on tp (line 9)".

    others: the ranks that a call waits for; those that have not joined it, by default.
    """
    calls: dict[str, list[tuple[int, str]]] = {}
    for rank, events in world.waiting().items():
        hit = next((event for event in events if set(ranks) & set((others or world.missing)(event))), None)
        if hit is not None:
            calls.setdefault(call_text(hit), []).append((rank, where(hit)))
    whom = verb(ranks, "it", "them")
    told = [_waiting_text(call, found, whom) for call, found in list(calls.items())[:MOST_CALLS]]
    more = ["; others wait in other calls"] if len(calls) > MOST_CALLS else []
    return "".join(told + more)


def _waiting_text(call: str, found: Sequence[tuple[int, str]], whom: str) -> str:
    who, places = [rank for rank, _ in found], {place for _, place in found}
    place = places.pop() if len(places) == 1 else ""
    return f"; {ranks_text(who)} {verb(who, 'waits', 'wait')} for {whom} in {call}{place}"


def ending_text(world: World, ranks: Sequence[int]) -> str:
    """What became of ranks after a mismatch: gloo ends a process that gets a wrong size."""
    ended = [world.views[r] for r in ranks if r in world.views and world.views[r].state in ("dead", "raised")]
    parts = []
    for view in ended[:2]:
        name = ranks_text([view.rank])
        if view.state == "raised":
            parts.append(f"{name} raised {error_text(view).rstrip('.')}")
        else:
            gloo = ", which is how gloo answers" if "SIGABRT" in exit_text(view) else ""
            killed = (view.exit or "").startswith("killed")
            parts.append(f"{name} was {view.exit}{gloo}" if killed else f"{name} died: {exit_text(view)}")
    return "".join(f"; {part}" for part in parts)
