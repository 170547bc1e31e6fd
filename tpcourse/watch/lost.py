"""A host of several whose ranks all fell silent or died together: its network or the machine itself."""

from __future__ import annotations

from tpcourse.watch.failure import waiters_text
from tpcourse.watch.report import Fault
from tpcourse.watch.rows import at
from tpcourse.watch.views import World
from tpcourse.watch.words import ranks_text, verb

GONE = ("silent", "dead")


def explain_lost_host(world: World) -> Fault | None:
    """Name the hosts of which no rank answers while ranks of other hosts do."""
    by_host: dict[str, list[int]] = {}
    for view in world.views.values():
        if view.host is not None:
            by_host.setdefault(view.host, []).append(view.rank)
    lost = {host: ranks for host, ranks in by_host.items() if all(world.views[r].state in GONE for r in ranks)}
    if not lost or len(lost) == len(by_host):
        return None
    ranks = tuple(sorted(rank for mine in lost.values() for rank in mine))
    seen = sorted({world.views[rank].line or "" for rank in ranks})
    last = f", last seen{at(seen[0])}" if len(seen) == 1 and seen[0] else ""
    hosts = f"{verb(range(len(lost)), 'host', 'hosts')} {', '.join(lost)} {verb(range(len(lost)), 'does', 'do')}"
    # A rank there may have ended a call whose last message was lost, so whoever is in a call with it waits.
    text = f"{hosts} not answer: {ranks_text(ranks)} {verb(ranks, 'is', 'are')} there{last}"
    return Fault("host", f"{text}{waiters_text(world, ranks, world.others)}.", ranks)
