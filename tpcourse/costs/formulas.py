"""Time of every algorithm of `tpcourse.wire` in the alpha-beta model: steps x alpha + bytes x beta.

Steps are rounds of messages that follow each other. Bytes are those of the largest message of each round, summed:
what the slowest path carries, which is more than one rank sends where ranks take turns (tree, naive). The model knows
no contention, no cost of adding, and one link for all pairs of ranks. Sources:

- T: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005;
- P: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009;
- W: counted from the code in `tpcourse.wire`, and compared with its ledger by a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tpcourse.costs.asked import require_bytes, require_ranks
from tpcourse.costs.links import Line, find_link


class Algorithm(NamedTuple):
    """How often alpha and how many arrays of n bytes an algorithm pays on p ranks; `kernel` is its name in wire."""

    steps: Callable[[int], int]
    arrays: Callable[[int], float]
    kernel: str
    source: str


def depth(p: int) -> int:
    """ceil(log2 p): how often 1 must double to reach p."""
    return (p - 1).bit_length()


def _one_by_one(p: int) -> int:
    return p - 1


def _whole_each_step(p: int) -> float:
    return float(p - 1)


def _all_but_one_piece(p: int) -> float:
    return (p - 1) / p


def _seats(p: int) -> tuple[int, int]:
    """q, the largest power of two that is not above p, and the p - q guests (see `wire.halving`)."""
    q = 1 << (p.bit_length() - 1)
    return q, p - q


def _halving_steps(p: int) -> int:
    q, guests = _seats(p)
    return depth(q) + (2 if guests else 0)


def _halving_arrays(p: int) -> float:
    """Halves of 1, 2, 4 ... seats; a seat with a guest has two pieces. Guests come with n and go with n/p."""
    q, guests = _seats(p)
    distances = [1 << bit for bit in range(depth(q))]
    pieces = sum(distance + min(guests, distance) for distance in distances)
    return pieces / p + (1 + 1 / p if guests else 0)


def _both_steps(p: int) -> int:
    q, guests = _seats(p)
    return 2 * depth(q) + (2 if guests else 0)


def _both_arrays(p: int) -> float:
    q, guests = _seats(p)
    return 2 * (q - 1) / q + (2 if guests else 0)


ALGORITHMS: Mapping[tuple[str, str], Algorithm] = MappingProxyType({
    ("broadcast", "naive"): Algorithm(_one_by_one, _whole_each_step, "naive_broadcast", "W"),
    ("broadcast", "tree"): Algorithm(depth, depth, "tree_broadcast", "T 4.3"),
    ("reduce", "naive"): Algorithm(_one_by_one, _whole_each_step, "naive_reduce", "W"),
    ("reduce", "tree"): Algorithm(depth, depth, "tree_reduce", "T 4.4"),
    ("scatter", "naive"): Algorithm(_one_by_one, _all_but_one_piece, "naive_scatter", "W"),
    ("gather", "naive"): Algorithm(_one_by_one, _all_but_one_piece, "naive_gather", "W"),
    ("all_gather", "ring"): Algorithm(_one_by_one, _all_but_one_piece, "ring_all_gather", "T 4.1"),
    ("all_gather", "halving_doubling"): Algorithm(_halving_steps, _halving_arrays, "doubling_all_gather", "T 4.1"),
    ("reduce_scatter", "ring"): Algorithm(_one_by_one, _all_but_one_piece, "ring_reduce_scatter", "P"),
    ("reduce_scatter", "halving_doubling"): Algorithm(
        _halving_steps, _halving_arrays, "halving_reduce_scatter", "T 4.4"
    ),
    ("all_reduce", "naive"): Algorithm(
        lambda p: 2 * _one_by_one(p), lambda p: 2 * _whole_each_step(p), "naive_all_reduce", "W"
    ),
    ("all_reduce", "tree"): Algorithm(lambda p: 2 * depth(p), lambda p: 2 * depth(p), "tree_all_reduce", "T 4.5"),
    ("all_reduce", "ring"): Algorithm(
        lambda p: 2 * _one_by_one(p), lambda p: 2 * _all_but_one_piece(p), "ring_all_reduce", "P"
    ),
    ("all_reduce", "halving_doubling"): Algorithm(
        _both_steps, _both_arrays, "halving_doubling_all_reduce", "T 4.5"
    ),
    ("all_to_all", "pairwise"): Algorithm(_one_by_one, _all_but_one_piece, "pairwise_all_to_all", "T 4.2"),
})  # fmt: skip
"""(operation, algorithm) -> its cost. In `arrays`, n is the whole array, as everywhere in the course."""


def find_algorithm(op: str, algorithm: str) -> Algorithm:
    """An algorithm of an operation. Raises: ValueError that names the operation's algorithms, or the operations."""
    if (op, algorithm) in ALGORITHMS:
        return ALGORITHMS[op, algorithm]
    known = [name for of, name in ALGORITHMS if of == op]
    if known:
        raise ValueError(f"{op} has no algorithm {algorithm!r}; it has {', '.join(known)}")
    raise ValueError(f"no operation is named {op!r}; there are {', '.join(dict.fromkeys(of for of, _ in ALGORITHMS))}")


def seconds(op: str, num_bytes: float, p: int, link: str | Line, algorithm: str = "ring") -> float:
    """Time of a collective on an array of num_bytes in all: steps(p) alpha + arrays(p) num_bytes beta.

    For example a ring all-reduce: 2(p-1) alpha + 2(p-1)/p n beta. One rank takes no time.
    Raises: ValueError for a size of 0 or less, p < 1, an unknown link, operation or algorithm.
    """
    chosen, line = find_algorithm(op, algorithm), find_link(link)
    n, p = require_bytes(num_bytes), require_ranks(p)
    return chosen.steps(p) * line.alpha_s + chosen.arrays(p) * n * line.beta_s_per_byte


def crossing(
    p: int, link: str | Line, few_steps: str = "tree", few_bytes: str = "ring", op: str = "all_reduce"
) -> float:
    """Bytes from which the algorithm with fewer bytes is faster than the one with fewer steps.

    Equal times: (s1 - s2) alpha = (a2 - a1) n beta. For ring and tree, with d = ceil(log2 p):
    n = alpha / beta (p - 1 - d) / (d - (p-1)/p). 0 where `few_bytes` is never slower: ring and tree at p = 2 and 3.
    Raises: ValueError as `seconds`; and if `few_bytes` does not carry fewer bytes at this p.
    """
    first, second, p = find_algorithm(op, few_steps), find_algorithm(op, few_bytes), require_ranks(p)
    line, saved = find_link(link), first.arrays(p) - second.arrays(p)
    if saved <= 0:
        raise ValueError(
            f"{op} on p = {p} ranks: {few_bytes} carries {second.arrays(p):g} n bytes and {few_steps} "
            f"{first.arrays(p):g} n: give as few_bytes the one that carries fewer, and p of 2 or more"
        )
    more = max(0, second.steps(p) - first.steps(p))
    return more * line.alpha_s / (saved * line.beta_s_per_byte)
