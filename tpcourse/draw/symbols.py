"""What each rank holds before and after a collective: data only."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tpcourse.dims import split_range

OPS = (
    "broadcast", "scatter", "gather", "reduce", "all_gather", "all_reduce", "reduce_scatter", "all_to_all",
    "send_receive",
)  # fmt: skip


class Cell(NamedTuple):
    """One element: the ranks whose contributions it holds, and its index in their arrays."""

    ranks: tuple[int, ...]
    element: int

    def __str__(self) -> str:
        """a0 is element 0 of rank 0's array, b0 of rank 1's; a0+c0 their sum."""
        return "+".join(f"{chr(ord('a') + rank)}{self.element}" for rank in self.ranks)


Row = list[Cell | None]
Holding = list[Row]  # by rank; None: nothing of interest there


def chunk(n: int, p: int, rank: int) -> range:
    """Elements of rank's part of n elements: sizes differ by one at most, the larger first."""
    return range(*split_range(n, p, rank))


def holdings(op: str, p: int, n: int | None = None, root: int = 0) -> tuple[Holding, Holding]:
    """What p ranks hold before and after an operation on an array of n elements, each part drawn at its place.

    Raises: ValueError for an unknown operation, p < 1, n < 1, a root outside the group, or an all_to_all whose n
    is not a multiple of p.
    """
    n = p if n is None else n
    if op not in OPS:
        raise ValueError(f"unknown operation {op!r}: choose one of {', '.join(OPS)}")
    if not (1 <= p <= 26 and n >= 1 and 0 <= root < p):
        raise ValueError(f"p = {p} ranks, n = {n} elements, root = {root}: need 1 <= p <= 26, n >= 1, 0 <= root < p")
    if op == "all_to_all" and n % p:
        raise ValueError(f"all_to_all of n = {n} elements on p = {p} ranks: choose n as a multiple of {p}")
    return _before(op, p, n, root), _after(op, p, n, root)


def _own(rank: int, n: int, elements: Sequence[int]) -> Row:
    return [Cell((rank,), e) if e in elements else None for e in range(n)]


def _before(op: str, p: int, n: int, root: int) -> Holding:
    if op in ("broadcast", "scatter", "send_receive"):
        return [_own(r, n, range(n) if r == root else ()) for r in range(p)]
    if op in ("gather", "all_gather"):
        return [_own(r, n, chunk(n, p, r)) for r in range(p)]
    return [_own(r, n, range(n)) for r in range(p)]


def _after(op: str, p: int, n: int, root: int) -> Holding:
    everyone, nothing = tuple(range(p)), [None] * n
    total: Row = [Cell(everyone, e) for e in range(n)]
    joined: Row = [Cell((r,), e) for r in everyone for e in chunk(n, p, r)]
    whole = {"broadcast": _own(root, n, range(n)), "all_gather": joined, "all_reduce": total}
    if op in whole:
        return [list(whole[op]) for _ in everyone]
    if op in ("gather", "reduce"):
        return [list(joined if op == "gather" else total) if r == root else list(nothing) for r in everyone]
    if op == "send_receive":
        return [_own(root, n, range(n)) if r in (root, (root + 1) % p) else list(nothing) for r in everyone]
    if op == "all_to_all":
        return [[Cell((s,), e) for s in everyone for e in chunk(n, p, r)] for r in everyone]
    source = total if op == "reduce_scatter" else _own(root, n, range(n))
    return [[source[e] if e in chunk(n, p, r) else None for e in range(n)] for r in everyone]


def values(tensor: Any) -> list[float]:
    """The elements of a tensor, array, number or list, in order."""
    data = tensor.tolist() if hasattr(tensor, "tolist") else tensor
    if isinstance(data, (list, tuple)):
        return [value for part in data for value in values(part)]
    return [data]


def origins(before: list[list[float]], after: list[list[float]]) -> list[list[tuple[int, ...]]]:
    """For each value after: the rank it came from, all ranks if it is their sum or mean, () if nobody can tell.

    Trap: give every rank different values (10 * rank + element); a value that two ranks hold has no origin.
    """
    holders: dict[float, set[int]] = {}
    for rank, row in enumerate(before):
        for value in row:
            holders.setdefault(value, set()).add(rank)
    sums = [sum(column) for column in zip(*before, strict=False)]
    totals = sums + [value / len(before) for value in sums]
    return [[_origin(value, holders, totals, len(before)) for value in row] for row in after]


def _origin(value: float, holders: dict[float, set[int]], totals: list[float], p: int) -> tuple[int, ...]:
    if value in holders:
        return tuple(holders[value]) if len(holders[value]) == 1 else ()
    close = any(abs(value - total) <= 1e-5 * max(1.0, abs(total)) for total in totals)
    return tuple(range(p)) if close else ()
