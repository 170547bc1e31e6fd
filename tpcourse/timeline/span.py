"""Spans: who did what from when to when, and what share of the communication was hidden. Data only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tpcourse.ledger import Event, Log

COMPUTE, COMMUNICATION = LANES = ("compute", "communication")
Stretch = tuple[float, float]
Spans = Iterable[Any]


class Span(NamedTuple):
    """One thing that a rank did; seconds of a clock that the ranks of one machine share."""

    rank: int
    lane: str  # one of LANES
    name: str
    begin_s: float
    end_s: float


def spans_of(rows: Spans) -> list[Span]:
    """A flat list of spans, from spans or rows of five as JSON has them, or from such lists of several ranks.

    Raises: ValueError for no span, a row that is none, a lane that is not in LANES, or an end before the begin.
    """
    found: list[Span] = []
    for row in rows:
        if isinstance(row, Sequence) and (not row or isinstance(row[0], Sequence)):
            found += spans_of(row) if row else []
        elif not isinstance(row, Sequence) or len(row) != 5:
            raise ValueError(f"{row!r} is no span: give (rank, lane, name, begin_s, end_s)")
        else:
            found.append(Span(*row))
    if not found:
        raise ValueError("0 spans: record at least one call")
    for span in found:
        if span.lane not in LANES or span.end_s < span.begin_s:
            raise ValueError(f"{span}: its lane must be one of {', '.join(LANES)}, its end not before its begin")
    return found


def from_ledger(log: Log | Iterable[Log]) -> list[Span]:
    """Each rank's calls, and between its first call and the end of its last the time in which it computed.

    A rank computes unless it is in a call that blocks, or waits for one that does not. A call without an end lasts to
    the end of the run. Raises: ValueError for a log without events.
    Trap: on a GPU the ledger sees when the CPU called, not when the GPU worked: there, record with the profiler.
    """
    logs = [log] if hasattr(log, "events") else list(log)
    events = [event for one in logs for event in one.events]
    if not events:
        raise ValueError(f"{len(logs)} logs hold 0 events: put the calls inside `with ledger() as log:`")
    last = max(time for event in events for time in (event.begin_s, event.end_s) if time is not None)
    spans: list[Span] = []
    for rank in sorted({event.rank for event in events}):
        own = sorted((event for event in events if event.rank == rank), key=lambda event: event.begin_s)
        calls = [Span(rank, COMMUNICATION, e.op, e.begin_s, last if e.end_s is None else e.end_s) for e in own]
        whole = (own[0].begin_s, max(call.end_s for call in calls))
        busy = union(_blocked(event, last) for event in own)
        spans += [*calls, *(Span(rank, COMPUTE, COMPUTE, *gap) for gap in without(whole, busy))]
    return spans


def _blocked(event: Event, last: float) -> Stretch:
    """The time in which a rank did nothing else than this call."""
    end = last if event.end_s is None else event.end_s
    if not event.is_async:
        return event.begin_s, end
    if event.wait_begin_s is None:
        return event.begin_s, event.begin_s
    return event.wait_begin_s, end if event.waited_s is None else event.waited_s


def hidden(overlap_s: float, gemm_s: float, serial_s: float) -> float | None:
    """E = 1 - (T_overlap - T_gemm) / (T_serial - T_gemm): the share of exposed communication that cost no time.

    1 is as fast as the product alone, 0 as fast as one after the other, below 0 slower. None where the product alone
    was not faster than serial: there is nothing to hide.
    """
    return None if serial_s <= gemm_s else 1 - (overlap_s - gemm_s) / (serial_s - gemm_s)


def covered(rows: Spans) -> dict[int, float]:
    """Rank -> the share of the time in which it communicates that it computes in too; 0 if it does neither.

    Trap: 1 does not mean that the step got faster. Both may run at once and slow each other down, and a kernel that
    waits for its peer counts as communication. Only `hidden`, from wall time, says what was won.
    """
    spans = spans_of(rows)
    shares = {}
    for rank in sorted({span.rank for span in spans}):
        compute, communication = (
            union((s.begin_s, s.end_s) for s in spans if s.rank == rank and s.lane == lane) for lane in LANES
        )
        alone = sum(_length(without(stretch, compute)) for stretch in communication)
        total = _length(communication)
        shares[rank] = 1 - alone / total if total else 0.0
    return shares


def joined(rows: Spans, gap_s: float) -> list[Span]:
    """The same with fewer spans: those of a rank's computing that follow each other within `gap_s` are one."""
    spans = spans_of(rows)
    found = [span for span in spans if span.lane == COMMUNICATION]
    for rank in sorted({span.rank for span in spans}):
        busy = union((s.begin_s, s.end_s + gap_s) for s in spans if s.rank == rank and s.lane == COMPUTE)
        found += [Span(rank, COMPUTE, COMPUTE, begin, end - gap_s) for begin, end in busy]
    return found


def union(stretches: Iterable[Stretch]) -> list[Stretch]:
    """The same time in stretches that neither touch nor overlap."""
    found: list[Stretch] = []
    for begin, end in sorted(stretches):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif end > begin:
            found.append((begin, end))
    return found


def without(whole: Stretch, busy: Sequence[Stretch]) -> list[Stretch]:
    """What is left of a stretch; `busy` is a union."""
    gaps, (now, last) = [], whole
    for begin, end in busy:
        if begin > now and now < last:
            gaps.append((now, min(begin, last)))
        now = max(now, end)
    return [*gaps, (now, last)] if last > now else gaps


def _length(stretches: Sequence[Stretch]) -> float:
    return sum(end - begin for begin, end in stretches)
