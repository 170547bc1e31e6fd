"""When each rank computes and communicates: data only."""

from typing import TYPE_CHECKING, NamedTuple

from tpcourse.draw.rounds import Logs, events_of
from tpcourse.timeline.span import COMPUTE, Span

if TYPE_CHECKING:
    from tpcourse.ledger import Event


class Interval(NamedTuple):
    """A stretch of one rank's time in milliseconds since the first call of any rank."""

    begin_ms: float
    end_ms: float
    op: str  # "" while it computes
    finished: bool = True


class Lanes(NamedTuple):
    """One rank's time: no call under way; no call that blocks (it computes or waits); its calls."""

    compute: list[Interval]
    free: list[Interval]
    communication: list[Interval]


def intervals(log: Logs) -> dict[int, Lanes]:
    """Computation (the gaps between calls) and communication (the calls) of each rank, by rank.

    A call that never ended lasts to the end of the run. Trap: the ledger does not see when a `wait` begins, so while an
    asynchronous call is under way a rank is `free`: it computes or waits. Raises: ValueError for no events.
    """
    events = events_of(log)
    start = min(e.begin_s for e in events)
    last = max(e.begin_s if e.end_s is None else e.end_s for e in events)
    last += 0.05 * (last - start) if any(e.end_s is None for e in events) else 0.0
    lanes = {}
    for rank in sorted({e.rank for e in events}):
        own = sorted((e for e in events if e.rank == rank), key=lambda e: e.begin_s)
        calls = [(_interval(e, start, last), e.is_async) for e in own]
        every, blocking = [c for c, _ in calls], [c for c, is_async in calls if not is_async]
        lanes[rank] = Lanes(_gaps(every, every), _gaps(blocking, every), every)
    return lanes


def lanes_of(spans: list[Span]) -> dict[int, Lanes]:
    """The lanes of each rank, by rank, from spans; nothing is `free`: they say what was computed."""
    start_s = min(span.begin_s for span in spans)
    found = {rank: Lanes([], [], []) for rank in sorted({span.rank for span in spans})}
    for span in sorted(spans, key=lambda span: span.begin_s):
        lane = found[span.rank].compute if span.lane == COMPUTE else found[span.rank].communication
        lane.append(Interval(1e3 * (span.begin_s - start_s), 1e3 * (span.end_s - start_s), span.name))
    return found


def _interval(event: "Event", start: float, last: float) -> Interval:
    end = last if event.end_s is None else event.end_s
    return Interval(1e3 * (event.begin_s - start), 1e3 * (end - start), event.op, event.end_s is not None)


def _gaps(busy: list[Interval], calls: list[Interval]) -> list[Interval]:
    """The rank's time from its first call to the end of its last, less the busy part."""
    gaps, now = [], calls[0].begin_ms
    for call in busy:
        if call.begin_ms > now:
            gaps.append(Interval(now, call.begin_ms, ""))
        now = max(now, call.end_ms)
    end = max(call.end_ms for call in calls)
    return [*gaps, Interval(now, end, "")] if end > now else gaps


def together(calls: list[Interval]) -> list[list[Interval]]:
    """Calls in heaps: those of one heap overlap in time, and no two heaps do."""
    heaps: list[list[Interval]] = []
    end = float("-inf")
    for call in sorted(calls):
        if call.begin_ms >= end:
            heaps.append([])
        heaps[-1].append(call)
        end = max(end, call.end_ms)
    return heaps
