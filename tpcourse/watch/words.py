"""The words of a report: ranks, calls, lines and shapes."""

from collections.abc import Iterable
from typing import Any

PAIR_OPS = ("send", "recv")


def ranks_text(ranks: Iterable[int]) -> str:
    """Name ranks in order with runs joined: "rank 1", "ranks 0-2", "ranks 0, 2-7"."""
    numbers = runs_text(ranks)
    return f"rank {numbers}" if numbers.isdigit() else f"ranks {numbers}"


def runs_text(ranks: Iterable[int]) -> str:
    """Write numbers with runs joined: "0, 2-7"."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def verb(ranks: Iterable[int], one: str, many: str) -> str:
    """Choose the form of a verb that fits the number of ranks."""
    return one if len(set(ranks)) == 1 else many


def call_text(event: Any) -> str:
    """Name a call: "all_reduce #7 on tp", "send #2 to rank 3 on world"."""
    return f"{event.op} #{event.seq}{peer_text(event)} on {event.label}"


def peer_text(event: Any) -> str:
    """Name the other end of a send or receive; nothing for a collective."""
    if event.op == "send":
        return f" to rank {event.peer}"
    if event.op == "recv":
        return " from any rank" if event.peer is None else f" from rank {event.peer}"
    return ""


def line_text(event: Any) -> str:
    """Say where a call was made: "line 12", "line 12, in backward"."""
    if not event.line:
        return ""
    return f"{event.line}, in backward" if "backward" in (event.function or "") else event.line


def where(*events: Any) -> str:
    """Put the lines of calls in brackets: " (line 12)", or " (lines 3 and 5)" where they differ."""
    lines = list(dict.fromkeys(filter(None, map(line_text, events))))
    if not lines:
        return ""
    if len(lines) > 2 or any(not line[5:].isdigit() for line in lines):
        return f" ({'; '.join(lines[:3])}{'; ...' if len(lines) > 3 else ''})"
    return f" ({lines[0]})" if len(lines) == 1 else f" (lines {lines[0][5:]} and {lines[1][5:]})"


def tensor_text(event: Any) -> str:
    """Describe what a call carries: "[4, 8] float32"; nothing for a barrier."""
    return "" if event.op == "barrier" else f"{list(event.shape)} {event.dtype}"


def details_text(event: Any) -> str:
    """Describe all that ranks must agree on: "[4, 8] float32, max", "[4] float32, root 2"."""
    root = "" if event.op in PAIR_OPS or event.peer is None else f"root {event.peer}"
    tag = f"tag {event.tag}" if event.tag else ""
    return ", ".join(filter(None, (tensor_text(event), event.reduction, root, tag)))


def listed(parts: list[str], most: int = 4) -> str:
    """Join parts with commas, at most `most` of them."""
    return ", ".join(parts[:most]) + (f", and {len(parts) - most} more" if len(parts) > most else "")
