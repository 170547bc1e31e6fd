"""Collectives as rounds of moves: schedules for the stepper, data only."""

from collections.abc import Callable
from typing import NamedTuple

from tpcourse.draw.symbols import Cell, Holding, chunk, holdings


class Move(NamedTuple):
    """In one round src sends an element (its column) to dst's column `lands`; `adds`: dst adds it to its own."""

    src: int
    dst: int
    element: int
    lands: int
    adds: bool = False


Rounds = list[list[Move]]


def _part(src: int, dst: int, elements: range, adds: bool = False) -> list[Move]:
    return [Move(src, dst, e, e, adds) for e in elements]


def broadcast_one_by_one(p: int, n: int) -> Rounds:
    """The root sends its array to one rank after the other."""
    return [_part(0, dst, range(n)) for dst in range(1, p)]


def broadcast_tree(p: int, n: int) -> Rounds:
    """Whoever has the array sends it on: the number of ranks that have it doubles in each round."""
    reach = [2**k for k in range((p - 1).bit_length())]
    return [[m for src in range(min(d, p - d)) for m in _part(src, src + d, range(n))] for d in reach]


def reduce_tree(p: int, n: int) -> Rounds:
    """The tree broadcast backwards: half of the ranks hand their sum on in each round."""
    forward = reversed(broadcast_tree(p, n))
    return [[Move(m.dst, m.src, m.element, m.lands, True) for m in moves] for moves in forward]


def scatter_one_by_one(p: int, n: int) -> Rounds:
    """The root sends each rank its chunk, one after the other."""
    return [_part(0, dst, chunk(n, p, dst)) for dst in range(1, p)]


def gather_one_by_one(p: int, n: int) -> Rounds:
    """One rank after the other sends its chunk to the root."""
    return [_part(src, 0, chunk(n, p, src)) for src in range(1, p)]


def reduce_one_by_one(p: int, n: int) -> Rounds:
    """One rank after the other sends its array to the root, which adds it."""
    return [_part(src, 0, range(n), adds=True) for src in range(1, p)]


def all_gather_ring(p: int, n: int, ahead: int = 0) -> Rounds:
    """In round k rank r hands chunk r - k (+ ahead) to rank r + 1."""
    return [
        [m for r in range(p) for m in _part(r, (r + 1) % p, chunk(n, p, (r + ahead - k) % p))] for k in range(p - 1)
    ]


def reduce_scatter_ring(p: int, n: int) -> Rounds:
    """In round k rank r hands its sum of chunk r - 1 - k to rank r + 1, which adds its own."""
    return [[m._replace(adds=True) for m in moves] for moves in all_gather_ring(p, n, ahead=-1)]


def all_reduce_ring(p: int, n: int) -> Rounds:
    """A ring reduce-scatter, then a ring all-gather."""
    return reduce_scatter_ring(p, n) + all_gather_ring(p, n)


def all_reduce_one_by_one(p: int, n: int) -> Rounds:
    """All send to the root, which adds and sends the sum back."""
    return reduce_one_by_one(p, n) + broadcast_one_by_one(p, n)


def all_reduce_halving_doubling(p: int, n: int) -> Rounds:
    """Partners at distance p/2, p/4, ... 1 swap halves and add; then back again, handing on the sums."""
    if p & (p - 1):
        raise ValueError(f"halving and doubling pairs ranks off: p = {p} is not a power of 2, choose 2, 4 or 8")
    halving = []
    for distance in [2**k for k in reversed(range(p.bit_length() - 1))]:
        pairs = [(r, r ^ distance) for r in range(p)]
        kept = {dst: [c for c in range(p) if c // distance == dst // distance] for _, dst in pairs}
        halving.append([m for src, dst in pairs for c in kept[dst] for m in _part(src, dst, chunk(n, p, c), True)])
    back = [[Move(m.dst, m.src, m.element, m.lands) for m in moves] for moves in reversed(halving)]
    return halving + back


def all_to_all_pairwise(p: int, n: int) -> Rounds:
    """In round k rank r swaps with rank r xor k; where p is not a power of 2, with rank k - r."""
    partner = (lambda r, k: (k - r) % p) if p & (p - 1) else (lambda r, k: r ^ k)
    rounds = []
    for k in range(p):
        swaps = [(r, partner(r, k)) for r in range(p) if partner(r, k) != r]
        rounds.append([
            Move(r, other, e, lands)
            for r, other in swaps
            for e, lands in zip(chunk(n, p, other), chunk(n, p, r), strict=True)
        ])  # fmt: skip
    return [moves for moves in rounds if moves]


ALGORITHMS: dict[str, Callable[[int, int], Rounds]] = {
    "all_gather, ring": all_gather_ring,
    "reduce_scatter, ring": reduce_scatter_ring,
    "all_reduce, ring": all_reduce_ring,
    "all_reduce, halving and doubling": all_reduce_halving_doubling,
    "all_reduce, one by one": all_reduce_one_by_one,
    "broadcast, tree": broadcast_tree,
    "broadcast, one by one": broadcast_one_by_one,
    "reduce, tree": reduce_tree,
    "reduce, one by one": reduce_one_by_one,
    "scatter, one by one": scatter_one_by_one,
    "gather, one by one": gather_one_by_one,
    "all_to_all, pairwise": all_to_all_pairwise,
}


def play(algorithm: str, p: int, n: int | None = None) -> tuple[list[Holding], Rounds]:
    """What each rank holds before the first and after each round, and the rounds.

    Raises: ValueError for an unknown algorithm, or a p that it cannot do.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
    n = p if n is None else n
    states = [holdings(algorithm.split(",")[0], p, n)[0]]
    rounds = ALGORITHMS[algorithm](p, n)
    for moves in rounds:
        states.append(apply(states[-1], moves))
    return states, rounds


def apply(state: Holding, moves: list[Move]) -> Holding:
    """What ranks hold after a round: all of them send what they held before it."""
    after = [list(row) for row in state]
    for move in moves:
        sent, own = state[move.src][move.element], after[move.dst][move.lands]
        assert sent is not None, f"rank {move.src} sends element {move.element}, which it does not hold"
        ranks = sent.ranks + own.ranks if move.adds and own is not None else sent.ranks
        after[move.dst][move.lands] = Cell(tuple(sorted(ranks)), sent.element)
    return after
