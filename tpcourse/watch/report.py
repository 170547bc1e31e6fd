"""A fault in words, and the block of text that shows it."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tpcourse.watch.words import runs_text

WIDTH = 92
MOST_ROWS = 6
TOGETHER = re.compile(
    r"(?<=\bline|\brank|\bcell) (?=\d)|(?<=\blines|\branks) (?=\d)"  # rank 3, lines 4
    r"| (?=of cell \d)|(?<=\bof) (?=cell \d)| (?=->)|(?<=->) "  # line 4 of cell 7, 0 -> 1
)

HINTS = {
    "skipped call": "Every rank of a group must make the same calls in the same order.",
    "other order": "Every rank of a group must make the same calls in the same order.",
    "other operation": "Every rank of a group must make the same calls in the same order.",
    "other shape": "All ranks must pass tensors with the same number of elements.",
    "other splits": "What rank a sends to rank b must be as long as what rank b expects from rank a.",
    "other dtype": "All ranks must pass the same dtype.",
    "other reduction": "All ranks must ask for the same reduction.",
    "other root": "All ranks must name the same root, by its global rank.",
    "other group": "Every rank of a group must make the call on that same group.",
    "other tag": "A send and its receive need the same tag.",
    "wrong peer": "Each send needs a receive on the other rank; each of the two names the other.",
    "send without receive": "Each send needs a receive on the rank it names.",
    "receive without send": "Each receive needs a send on the rank it names.",
    "crosswise": "Ranks that share several groups must use them in the same order.",
    "cycle": "In a circle of waits somebody must go first: let one rank call in the other order.",
    "raised": "Mend the error first; the other ranks only waited.",
    "died": "See what ended the process first; the other ranks only waited.",
    "host": "See whether that host runs and its network is up; the other ranks only waited.",
    "silent": "That rank is busy in C code that does not let Python run; see what its line calls.",
    "computing": "If that rank is only slow, raise patience; if it loops, mend the loop.",
}


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, one sentence, the ranks that differ, and a hint where the kind's own does not fit."""

    kind: str
    sentence: str
    ranks: tuple[int, ...]
    hint: str | None = None


@dataclass(frozen=True)
class Report:
    """What went wrong, in one sentence and in one block of text; `str()` gives the block."""

    kind: str
    sentence: str
    ranks: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Row:
    """One rank's line of the block: the call it last finished, and what it does now."""

    rank: int
    finished: str
    now: str
    host: str | None = None  # named where the ranks are on several


def report(fault: Fault, rows: Sequence[Row] = (), seconds: float | None = None) -> Report:
    """Lay out a fault and the ranks' rows as fixed-width text of about 12 lines."""
    blocks = [fill(fault.sentence)]
    if rows:
        blocks.append(_table(rows))
    hint = HINTS.get(fault.kind) if fault.hint is None else fault.hint
    tail = [hint] if hint else []
    if seconds is not None and round(seconds) > 0:
        tail.append(f"No progress for {round(seconds)} s.")
    if tail:
        blocks.append(fill(" ".join(tail)))
    return Report(fault.kind, fault.sentence, tuple(sorted(fault.ranks)), "\n\n".join(blocks))


def fill(text: str) -> str:
    """Break a text into lines, but neither inside "rank 3" or "line 4 of cell 7" nor inside a circle."""
    return textwrap.fill(TOGETHER.sub("\0", text), WIDTH, break_long_words=False).replace("\0", " ")


def _table(rows: Sequence[Row]) -> str:
    """Equal rows become one; the widths come from the content."""
    groups: dict[tuple[str, ...], list[int]] = {}
    several = any(row.host for row in rows)
    for row in rows:
        place = (row.host or "",) if several else ()
        groups.setdefault((*place, row.finished, row.now), []).append(row.rank)
    head = ("rank" if len(rows) == 1 else "ranks", *(("host",) if several else ()), "last finished", "now")
    cells = [head, *((runs_text(ranks), *texts) for texts, ranks in groups.items())]
    cut = cells[: MOST_ROWS + 1]
    widths = [max(len(row[i]) for row in cut) for i in range(len(head) - 1)]
    lines = ["  " + "   ".join([*(a.ljust(w) for a, w in zip(row, widths)), row[-1]]).rstrip() for row in cut]
    rest = [rank for ranks in list(groups.values())[MOST_ROWS:] for rank in ranks]
    return "\n".join(lines + ([f"  {runs_text(rest)}: not shown"] if rest else []))
