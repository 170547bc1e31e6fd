"""Bytes that one rank sends and receives in each operation, with the algorithm that sends least.

n is the whole array in bytes, p the number of ranks. Every function gives (sent, received). Where p does not
divide, a fraction of a byte is rounded up. Source: nccl-tests, PERFORMANCE.md (bus bandwidth factors).
"""

from __future__ import annotations

Bytes = tuple[int, int]


def share(n: int, p: int) -> int:
    """(p-1)/p n: all of an array but one rank's piece of it."""
    return -(-(p - 1) * n // p)


def all_reduce(n: int, p: int) -> Bytes:
    """2 (p-1)/p n each way: a reduce-scatter, then an all-gather."""
    both = -(-2 * (p - 1) * n // p)
    return both, both


def all_gather(n: int, p: int, own: int) -> Bytes:
    """(p-1)/p n sent; everything but the rank's own piece received."""
    return share(n, p), n - own


def reduce_scatter(n: int, p: int) -> Bytes:
    """(p-1)/p n each way."""
    return share(n, p), share(n, p)


def all_to_all(n_in: int, own_in: int, n_out: int, own_out: int) -> Bytes:
    """The pieces for others sent, the pieces of others received."""
    return n_in - own_in, n_out - own_out


def broadcast(n: int, p: int, is_root: bool) -> Bytes:
    """n on the root, which is enough when the others pass it on; n received elsewhere."""
    if p == 1:
        return 0, 0
    return (n, 0) if is_root else (0, n)


def reduce(n: int, p: int, is_root: bool) -> Bytes:
    """n on every rank but the root, which receives n: partial sums are added on the way."""
    if p == 1:
        return 0, 0
    return (0, n) if is_root else (n, 0)


def scatter(n: int, piece: int, is_root: bool) -> Bytes:
    """(p-1)/p n on the root: all but its own piece; the piece received elsewhere."""
    return (n - piece, 0) if is_root else (0, piece)


def gather(n: int, piece: int, is_root: bool) -> Bytes:
    """The piece on every rank but the root, which receives all but its own."""
    return (0, n - piece) if is_root else (piece, 0)


def barrier() -> Bytes:
    """Nothing that counts."""
    return 0, 0


def send(n: int) -> Bytes:
    """The message."""
    return n, 0


def receive(n: int) -> Bytes:
    """The message."""
    return 0, n
