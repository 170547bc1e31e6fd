"""Which files the ranks of `reloaded_adam` read, and which they need."""

from __future__ import annotations

from collections import Counter

from tpcourse.check.evidence import Case, Evidence
from tpcourse.check.lesson07 import common
from tpcourse.check.lesson07.plain import piece_size, real_size
from tpcourse.check.report import Line

READ = "files read"


def files_read(cases: list[Evidence]) -> Line:
    """Those in which this rank's piece lies."""
    return common.held_line(cases, _over, "each rank reads the files in which its piece lies, once", READ)


def needed(case: Case, rank: int) -> list[int]:
    """The files in which a rank's piece lies."""
    P, saved = case.sizes["P"], case.sizes["saved_by"]
    n, old = piece_size(P, case.p), piece_size(P, saved)
    start = rank * n
    end = start + real_size(P, case.p, rank)
    return [j for j in range(saved) if max(start, j * old) < min(end, (j + 1) * old)]


def asked(evidence: Evidence, rank: int) -> list[int]:
    """The files that a rank read, in order."""
    return evidence.outcomes[rank].facts.get("asked", [])


def _over(evidence: Evidence, rank: int) -> str:
    found, right = asked(evidence, rank), needed(evidence.case, rank)
    if sorted(found) == right:
        return ""
    if (times := times_each(evidence, rank)) > 1:
        return f"reads each of its files {times} times, and once is enough: {_list(right)}"
    return f"reads {_list(found)}, and its piece lies in {_list(right)}"


def times_each(evidence: Evidence, rank: int) -> int:
    """How often each file is read that is needed; 0 if others are read too, or some more often."""
    counts = Counter(asked(evidence, rank))
    same = set(counts) == set(needed(evidence.case, rank)) and len(set(counts.values())) == 1
    return counts.most_common(1)[0][1] if same else 0


def _list(numbers: list[int]) -> str:
    return f"{'file' if len(numbers) == 1 else 'files'} {', '.join(map(str, numbers))}" if numbers else "no file"
