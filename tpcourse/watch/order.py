"""What the calls after a mismatch tell about it: the order was swapped, or a call was left out."""

from typing import Any

from tpcourse.watch.mismatch import Side, culprits, sides
from tpcourse.watch.report import Fault
from tpcourse.watch.views import Board, Channel
from tpcourse.watch.words import call_text, line_text, ranks_text, where


def signature(event: Any) -> tuple[Any, ...]:
    """What must be equal for two calls to be the same call."""
    return (event.op, event.numel, event.dtype, event.reduction, event.peer)


def explain_order(board: Board, place: Channel, seq: int) -> Fault | None:
    """Recognise swapped or skipped calls from both sides' next calls; None if these do not tell."""
    calls = board.at(place, seq)
    found = sides(calls, signature)
    if len(found) != 2:
        return None
    later = [_later(board, place, seq, ranks) for _, ranks in found]
    (odd, _), (usual, _) = found
    if usual in later[0] and odd in later[1]:
        return _swapped(calls, found)
    if odd in later[1][:1] and usual not in later[0]:
        return _skipped(calls, culprits(found), found[0][1], found[1][1])
    if usual in later[0][:1] and odd not in later[1]:
        return _skipped(calls, culprits(found), found[1][1], found[0][1])
    return None


def _later(board: Board, place: Channel, seq: int, ranks: list[int]) -> list[tuple[Any, ...]]:
    """The calls that follow on one side, from the rank that got furthest."""
    rows = [board.calls[place][rank] for rank in ranks]
    longest = max(rows, key=max)
    return [signature(longest[number]) for number in sorted(longest) if number > seq]


def _swapped(calls: dict[int, Any], found: list[Side]) -> Fault:
    odd, usual = calls[found[0][1][0]], calls[found[1][1][0]]
    same = odd.op == usual.op
    names = [f"{event.op} of {list(event.shape)}" if same else event.op for event in (odd, usual)]
    sentence = (
        f"{ranks_text(found[0][1])} called {names[0]} before {names[1]} on {odd.label} from call #{odd.seq} on"
        f"{where(odd)}, {ranks_text(found[1][1])} {names[1]} before {names[0]}{where(usual)}."
    )
    return Fault("other order", sentence, culprits(found))


def _skipped(calls: dict[int, Any], odd: tuple[int, ...], short: list[int], full: list[int]) -> Fault:
    missed, went = calls[full[0]], calls[short[0]]
    line = line_text(missed)
    there = f" ({line} on {ranks_text(full)})" if line else f" (as {ranks_text(full)} did)"
    shown = went.op if went.op != missed.op else f"{went.op} of {list(went.shape)}"
    sentence = (
        f"{ranks_text(short)} did not call {call_text(missed)}{there}: "
        f"{'it' if len(short) == 1 else 'they'} went on to {shown}{where(went)}."
    )
    return Fault("skipped call", sentence, odd)
