"""Bytes and steps of every algorithm are exactly those of the formulas in its docstring."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from rig import run_ranks

from tpcourse import ledger as books
from tpcourse import wire
from tpcourse.dims import split_sizes

ITEM = 8  # bytes of a float64
LENGTHS = (0, 1, 5, 12, 840)  # 840 divides by all p below
RANKS = (1, 2, 3, 4, 7)


def _log(rank, group, name, shape, options):
    books.install()
    x = torch.ones(shape[rank] if isinstance(shape, list) else shape, dtype=torch.float64)
    with books.ledger() as log:
        getattr(wire, name)(x, group=group, **options)
    return log


def measure(name, p, shape, **options):
    """Elements sent by each rank, and steps."""
    logs = run_ranks(_log, p, name, shape, options)
    return [log.bytes_sent / ITEM for log in logs], books.merge(logs).steps


def children(v, p):
    """Ranks that rank v (counted from the root) passes a tree's message on to."""
    return sum(1 for bit in range(10) if v < 1 << bit and v + (1 << bit) < p)


def depth(p):
    return math.ceil(math.log2(p))


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("n", LENGTHS)
def test_a_ring_sends_every_piece_but_one_and_takes_p_minus_1_steps(n, p):
    sizes = split_sizes(n, p)
    right = [sizes[(r + 1) % p] for r in range(p)]
    assert measure("ring_reduce_scatter", p, n) == ([n - sizes[r] for r in range(p)], p - 1)
    assert measure("ring_all_gather", p, sizes, sizes=sizes) == ([n - right[r] for r in range(p)], p - 1)
    elements, steps = measure("ring_all_reduce", p, n)
    assert elements == [2 * n - sizes[r] - right[r] for r in range(p)]
    assert steps == 2 * (p - 1)
    assert max(elements) <= 2 * (p - 1) * math.ceil(n / p), "2(p-1)/p n, rounded up to pieces"


@pytest.mark.parametrize("p", RANKS)
def test_the_short_formulas_hold_where_p_divides_n(p):
    n = 840
    assert measure("ring_all_reduce", p, n) == ([2 * (p - 1) * n / p] * p, 2 * (p - 1))
    assert measure("pairwise_all_to_all", p, n) == ([(p - 1) * n / p] * p, p - 1)
    if p in (1, 2, 4):
        shard = [n // p] * p
        assert measure("halving_reduce_scatter", p, n) == ([(p - 1) * n / p] * p, depth(p))
        assert measure("doubling_all_gather", p, shard) == ([(p - 1) * n / p] * p, depth(p))
        assert measure("halving_doubling_all_reduce", p, n) == ([2 * (p - 1) * n / p] * p, 2 * depth(p))


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("root", [0, 1])
def test_a_tree_takes_log2_p_steps_and_sends_the_whole_array_to_each_child(root, p):
    n, root = 5, root % p
    v = [(r - root) % p for r in range(p)]
    assert measure("tree_broadcast", p, n, root=root) == ([n * children(v[r], p) for r in range(p)], depth(p))
    assert measure("tree_reduce", p, n, root=root) == ([n if v[r] else 0 for r in range(p)], depth(p))
    both = [n * children(r, p) + (n if r else 0) for r in range(p)]
    assert measure("tree_all_reduce", p, n) == (both, 2 * depth(p))


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("root", [0, 1])
def test_the_naive_way_takes_p_minus_1_steps_through_the_root(root, p):
    n, root = 5, root % p
    sizes = split_sizes(n, p)
    others = [r != root for r in range(p)]
    assert measure("naive_broadcast", p, n, root=root) == ([0 if o else (p - 1) * n for o in others], p - 1)
    assert measure("naive_scatter", p, n, root=root) == ([0 if o else n - sizes[root] for o in others], p - 1)
    gathered = [sizes[r] if others[r] else 0 for r in range(p)]
    assert measure("naive_gather", p, sizes, root=root, sizes=sizes) == (gathered, p - 1)
    assert measure("naive_reduce", p, n, root=root) == ([n if o else 0 for o in others], p - 1)
    assert measure("naive_all_reduce", p, n) == ([n if r else (p - 1) * n for r in range(p)], 2 * (p - 1))


def seats_of(p):
    """Ranks that share each seat: pairs first, then one each; as many seats as a power of two allows."""
    q = 2 ** int(math.log2(p))
    pairs = [[2 * i, 2 * i + 1] for i in range(p - q)]
    return pairs + [[r] for r in range(2 * (p - q), p)]


def doubled(data, i):
    """What seat i sends while the seats it has data of double in number."""
    sent, have = 0, 1
    while have < len(data):
        first = i // have * have
        sent += sum(data[first : first + have])
        have *= 2
    return sent


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("n", LENGTHS)
def test_halving_and_doubling_send_what_their_seats_say_for_any_p(n, p):
    sizes, seats = split_sizes(n, p), seats_of(p)
    data = [sum(sizes[r] for r in seat) for seat in seats]
    halves, doubles, both = [0] * p, [0] * p, [0] * p
    cut = split_sizes(n, len(seats))
    for i, (host, *guest) in enumerate(seats):
        halves[host] = n - data[i] + sum(sizes[g] for g in guest)
        doubles[host] = doubled(data, i) + n * len(guest)
        both[host] = n - cut[i] + doubled(cut, i) + n * len(guest)
        for g in guest:
            halves[g], doubles[g], both[g] = n, sizes[g], n
    extra, log2_q = (0 if len(seats) == p else 2), int(math.log2(len(seats)))
    assert measure("halving_reduce_scatter", p, n) == (halves, log2_q + extra)
    assert measure("doubling_all_gather", p, sizes, sizes=sizes) == (doubles, log2_q + extra)
    assert measure("halving_doubling_all_reduce", p, n) == (both, 2 * log2_q + extra)


def _uneven_log(rank, group):
    books.install()
    p = dist.get_world_size(group)
    table = [[(2 * s + 3 * r) % 5 for r in range(p)] for s in range(p)]
    x = torch.ones(sum(table[rank]), dtype=torch.float64)
    with books.ledger() as log:
        options = {"send_sizes": table[rank], "receive_sizes": [row[rank] for row in table]}
        wire.pairwise_all_to_all(x, group=group, **options)
    return log, (sum(table[rank]) - table[rank][rank]) * ITEM


@pytest.mark.parametrize("p", RANKS)
def test_an_uneven_all_to_all_sends_all_but_the_own_piece(p):
    logs, expected = zip(*run_ranks(_uneven_log, p), strict=True)
    assert tuple(log.bytes_sent for log in logs) == expected
    assert books.merge(list(logs)).steps == p - 1


def test_the_ledger_sees_which_elements_of_the_array_a_ring_sends():
    """Message diagrams are drawn from these offsets."""
    for rank, log in enumerate(run_ranks(_log, 3, "ring_all_gather", [2] * 3, {})):
        assert [event.offset for event in log.events if event.op == "send"] == [2 * rank, 2 * ((rank - 1) % 3)]
    for rank, log in enumerate(run_ranks(_log, 3, "ring_reduce_scatter", 6, {})):
        offsets = [event.offset for event in log.events if event.op == "send"]
        assert offsets == [2 * ((rank - 1) % 3), 2 * ((rank - 2) % 3)]


@pytest.mark.parametrize(
    ("name", "op", "count"),
    [
        ("all_reduce", "all_reduce", 2 * 2 / 3 * 12),
        ("reduce_scatter", "reduce_scatter", 2 / 3 * 12),
        ("all_gather", "all_gather", 2 * 12),
        ("all_to_all", "all_to_all", 2 / 3 * 12),
        ("broadcast", "broadcast", 12),
        ("reduce", "reduce", 12),
        ("scatter", "scatter", 2 / 3 * 12),
        ("gather", "gather", 12),
    ],
)
def test_each_wrapper_is_one_collective_of_its_name_and_bytes(name, op, count):
    logs = run_ranks(_log, 3, name, 12, {})
    assert all([event.op for event in log.events] == [op] for log in logs)
    assert max(log.bytes_sent for log in logs) == count * ITEM
