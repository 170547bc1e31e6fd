"""Calls that met under one number but are not the same call."""

from collections.abc import Callable, Mapping
from typing import Any

from tpcourse.watch.report import Fault
from tpcourse.watch.words import call_text, line_text, listed, ranks_text, tensor_text, where

Calls = Mapping[int, Any]
Side = tuple[Any, list[int]]

ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
EQUAL_SIZES = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather")
DETAILS: tuple[tuple[str, Callable[[Any], Any], tuple[str, ...]], ...] = (
    ("root", lambda event: event.peer, ROOTED),
    ("reduction", lambda event: event.reduction, REDUCING),
    ("dtype", lambda event: event.dtype, ()),
    ("shape", lambda event: event.bytes_sent if event.op == "all_gather" else event.numel, ()),
)


def sides(calls: Calls, value: Callable[[Any], Any]) -> list[Side]:
    """Group ranks by a value, the smallest group first."""
    groups: dict[Any, list[int]] = {}
    for rank in sorted(calls):
        groups.setdefault(value(calls[rank]), []).append(rank)
    return sorted(groups.items(), key=lambda side: (len(side[1]), side[1]))


def culprits(found: list[Side]) -> tuple[int, ...]:
    """The ranks outside the strict majority; all of them where there is none."""
    most = len(found[-1][1])
    everybody = sorted(rank for _, ranks in found for rank in ranks)
    return tuple(rank for rank in everybody if 2 * most <= len(everybody) or rank not in found[-1][1])


def compare_operations(calls: Calls) -> Fault | None:
    """Find ranks that called another operation under the same number."""
    found = sides(calls, lambda event: event.op)
    if len(found) < 2:
        return None
    first, rest = found[0], found[1:]
    odd = calls[first[1][0]]
    parts = [f"{ranks_text(ranks)} called {op}{where(*(calls[r] for r in ranks))}" for op, ranks in rest]
    sentence = (
        f"{ranks_text(first[1])} called {call_text(odd)}{where(*(calls[r] for r in first[1]))} where "
        f"{listed(parts)}: another operation, or the same calls in another order."
    )
    return Fault("other operation", sentence, culprits(found))


def compare_details(calls: Calls, sizes: tuple[str, ...] = ()) -> Fault | None:
    """Find ranks whose equal operations differ in root, reduction, dtype or number of elements.

    Trap: all_gather may have uneven pieces, so the whole counts, which its bytes tell; gather and scatter
        may have them too, so `sizes` names the operations whose sizes count.
    """
    op = next(iter(calls.values())).op
    if op == "barrier":
        return None
    for name, value, only in DETAILS:
        skip = op not in sizes if name == "shape" and sizes else bool(only) and op not in only
        found = sides(calls, value)
        if skip or len(found) < 2 or (name == "shape" and _has_splits(calls)):
            continue
        return Fault(f"other {name}", _details_sentence(name, found, calls), culprits(found))
    return compare_splits(calls)


def _has_splits(calls: Calls) -> bool:
    return any(event.splits is not None for event in calls.values())


def _shown(name: str, event: Any) -> str:
    return str({"shape": list(event.shape), "root": event.peer}.get(name, getattr(event, name, "")))


def _details_sentence(name: str, found: list[Side], calls: Calls) -> str:
    """Name the call once, then each side with its value, and its line where it differs."""
    first = calls[found[0][1][0]]
    lines = {line_text(event) for event in calls.values()}
    parts = []
    for _, ranks in found[1:]:
        text = f"{ranks_text(ranks)} with {_shown(name, calls[ranks[0]])}"
        parts.append(text + (where(*(calls[r] for r in ranks)) if len(lines) > 1 else ""))
    place = where(*(calls[r] for r in found[0][1]))
    value = _shown(name, first)
    return f"{ranks_text(found[0][1])} called {call_text(first)}{place} with {name} {value}, {listed(parts)}."


def compare_splits(calls: Calls) -> Fault | None:
    """Find a rank of an uneven all_to_all that expects another number of rows than a rank sends it."""
    for a, sent in calls.items():
        for b, received in calls.items():
            rows = _rows(sent.splits, sent.group, b), _rows(received.splits_received, received.group, a)
            if None in rows or rows[0] == rows[1]:
                continue
            sentence = (
                f"rank {a} sends {rows[0]} {'row' if rows[0] == 1 else 'rows'} to rank {b} in {call_text(sent)}"
                f"{where(sent)}, but rank {b} expects {rows[1]}{where(received) if a != b else ''}."
            )
            return Fault("other splits", sentence, tuple(sorted({a, b})))
    return None


def _rows(splits: tuple[int, ...] | None, group: tuple[int, ...], rank: int) -> int | None:
    fits = splits is not None and rank in group and len(splits) == len(group)
    return splits[group.index(rank)] if splits is not None and fits else None


def compare_tags(sent: Any, received: Any) -> Fault | None:
    """Find a send and a receive that wait for each other with different tags."""
    if sent.tag == received.tag or sent.end_s is not None or received.end_s is not None:
        return None
    sentence = (
        f"rank {sent.rank} waits in {call_text(sent)}{where(sent)} with tag {sent.tag}, "
        f"rank {received.rank} in {call_text(received)}{where(received)} with tag {received.tag}."
    )
    return Fault("other tag", sentence, (sent.rank, received.rank))


def compare_pair(sent: Any, received: Any) -> Fault | None:
    """Find a send and its receive that differ in dtype or number of elements."""
    if sent.tag != received.tag or (sent.dtype, sent.numel) == (received.dtype, received.numel):
        return None
    kind = "other dtype" if sent.dtype != received.dtype else "other shape"
    sentence = (
        f"rank {sent.rank} sends {tensor_text(sent)} to rank {received.rank} (send #{sent.seq} on {sent.label}"
        f"{', ' + line_text(sent) if sent.line else ''}), "
        f"which receives into {tensor_text(received)}{where(received)}."
    )
    hint = "A send and its receive need the same dtype and the same number of elements."
    return Fault(kind, sentence, (sent.rank, received.rank), hint)
