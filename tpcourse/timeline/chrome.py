"""A timeline as a Chrome trace: JSON that ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from tpcourse.timeline.span import LANES, Span, Spans, spans_of

MOST_ROWS = 100  # of one lane; a thread's number is 1 + its row, and MOST_ROWS more for the second lane


def trace(rows: Spans) -> dict[str, Any]:
    """The spans as complete events ("ph": "X"): a process for each rank, a thread for each lane, in microseconds.

    Spans of a lane that overlap, as those of two streams, lie in threads of their own: a thread's must nest. 0 is the
    first begin.
    """
    spans = sorted(spans_of(rows), key=lambda span: (span.begin_s, span.end_s))
    start_s, ends = spans[0].begin_s, dict[tuple[int, int], float]()
    events: list[dict[str, Any]] = []
    for span in spans:
        tid = _free(span, ends)
        ends[span.rank, tid] = span.end_s
        begin, end = (round(1e6 * (time_s - start_s), 3) for time_s in (span.begin_s, span.end_s))
        times = {"ts": begin, "dur": round(end - begin, 3)}
        events.append({"ph": "X", "name": span.name, "cat": span.lane, "pid": span.rank, "tid": tid, **times})
    return {"traceEvents": [*_names(sorted(ends)), *events], "displayTimeUnit": "ms"}


def write_trace(rows: Spans, path: str | PathLike[str]) -> Path:
    """Write the trace to a file; open it in ui.perfetto.dev, which keeps it in the browser."""
    where = Path(path)
    where.write_text(json.dumps(trace(rows), allow_nan=False) + "\n", "utf-8")
    return where


def _free(span: Span, ends: dict[tuple[int, int], float]) -> int:
    """The first thread of the span's lane in which the last span is over."""
    first = 1 + MOST_ROWS * LANES.index(span.lane)
    rows = range(first, first + MOST_ROWS)
    return next((tid for tid in rows if ends.get((span.rank, tid), span.begin_s) <= span.begin_s), rows[-1])


def _names(threads: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """What processes and threads are called, and in which order they are shown."""
    ranks = sorted({rank for rank, _ in threads})
    events = [_meta("process_name", rank, 0, {"name": f"rank {rank}"}) for rank in ranks]
    for rank, tid in threads:
        lane, row = LANES[(tid - 1) // MOST_ROWS], (tid - 1) % MOST_ROWS
        events.append(_meta("thread_name", rank, tid, {"name": lane + (f" ({row + 1})" if row else "")}))
        events.append(_meta("thread_sort_index", rank, tid, {"sort_index": tid}))
    return events


def _meta(name: str, rank: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": rank, "tid": tid, "args": args}
