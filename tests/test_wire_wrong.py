"""Wrong algorithms do not pass as right ones: each is the right one with one mistake."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rig import run_ranks
from wire_cases import mistakes

from tpcourse import wire
from tpcourse.dims import split_sizes
from tpcourse.wire import exchange


def _ring(x, group, *, turn=1, steps=None, first=-1, sizes=None, keep_input=True):
    """Ring reduce-scatter with its parts as options, so that each can be got wrong."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    partial = x.clone(memory_format=torch.contiguous_format) if keep_input else x.contiguous()
    pieces = partial.split(sizes or split_sizes(len(x), p))
    for step in range(p - 1 if steps is None else p - 1 + steps):
        outgoing = pieces[(rank - step + first) % p]
        mine = pieces[(rank - step + first - 1) % p]
        received = torch.empty_like(mine)
        exchange(outgoing, (rank + turn) % p, received, (rank - turn) % p, group=group)
        mine += received
    return pieces[rank].clone()


def right_ring(x, *, group, sizes=None):
    return _ring(x, group, sizes=sizes)


def ring_that_starts_at_its_own_piece(x, *, group, sizes=None):
    return _ring(x, group, sizes=sizes, first=0)


def ring_turned_the_other_way(x, *, group, sizes=None):
    return _ring(x, group, sizes=sizes, turn=-1)


def ring_without_the_last_add(x, *, group, sizes=None):
    return _ring(x, group, sizes=sizes, steps=-1)


def ring_that_works_in_its_input(x, *, group, sizes=None):
    return _ring(x, group, sizes=sizes, keep_input=False)


def gather_turned_the_other_way(shard, *, group):
    """Passes to the left and books what comes as if it came from the left."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    pieces = shard.new_zeros(p, *shard.shape)
    pieces[rank] = shard
    for step in range(p - 1):
        outgoing, incoming = pieces[(rank - step) % p], pieces[(rank - step - 1) % p]
        exchange(outgoing, (rank - 1) % p, incoming, (rank + 1) % p, group=group)
    return pieces.reshape(-1, *shard.shape[1:])


def gather_that_overwrites_what_it_still_has_to_send(shard, *, group):
    """Keeps what arrives in the place of the piece that it must pass on next."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    pieces = shard.new_zeros(p, *shard.shape)
    pieces[rank] = shard
    travelling, received = shard.clone(memory_format=torch.contiguous_format), torch.empty_like(pieces[0])
    for step in range(p - 1):
        exchange(travelling, (rank + 1) % p, received, (rank - 1) % p, group=group)
        pieces[(rank - step - 1) % p] = received
        travelling.copy_(shard)
    return pieces.reshape(-1, *shard.shape[1:])


def all_reduce_in_place(x, *, group):
    """Adds what arrives to the very tensor that the next step passes on, instead of passing on what arrived."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    total = x.clone(memory_format=torch.contiguous_format)
    received = torch.empty_like(total)
    for _ in range(p - 1):
        exchange(total, (rank + 1) % p, received, (rank - 1) % p, group=group)
        total += received
    return total


def all_reduce_that_forgets_the_rest(x, *, group):
    """Cuts n // p elements per rank; the n % p that remain are never sent."""
    p = dist.get_world_size(group)
    total, even = x.reshape(-1).clone(), x.numel() // p * p
    total[:even] = wire.ring_all_reduce(total[:even], group=group)
    return total.reshape(x.shape)


def _mistakes_at_12(rank, group, name, fn):
    """The one case that a careless test would have: 2, 3 and 4 divide it."""
    x = torch.arange(12.0) + 100 * rank
    return [] if torch.equal(fn(x, group=group), getattr(wire, name)(x, group=group)) else [f"rank {rank} is wrong"]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_the_ring_with_no_mistake_passes(p):
    assert run_ranks(mistakes, p, "ring_reduce_scatter", right_ring) == [[]] * p


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("wrong", [ring_without_the_last_add, ring_that_works_in_its_input])
def test_a_wrong_reduce_scatter_is_noticed(wrong, p):
    assert all(run_ranks(mistakes, p, "ring_reduce_scatter", wrong))


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_ring_whose_sums_end_on_the_wrong_rank_is_noticed(p):
    """Only with equal pieces: unequal ones would not even fit."""
    assert all(run_ranks(_mistakes_at_12, p, "reduce_scatter", ring_that_starts_at_its_own_piece))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("reduce_scatter", ring_turned_the_other_way),
        ("all_gather", gather_turned_the_other_way),
        ("all_gather", gather_that_overwrites_what_it_still_has_to_send),
        ("all_reduce", all_reduce_in_place),
    ],
)
def test_two_ranks_cannot_see_what_three_and_four_do(name, wrong):
    assert run_ranks(_mistakes_at_12, 2, name, wrong) == [[]] * 2
    for p in (3, 4):
        assert any(run_ranks(_mistakes_at_12, p, name, wrong))


@pytest.mark.parametrize("p", [2, 3, 4])
def test_an_all_reduce_that_works_only_if_p_divides_n_is_noticed_at_other_lengths(p):
    assert run_ranks(_mistakes_at_12, p, "all_reduce", all_reduce_that_forgets_the_rest) == [[]] * p
    assert all(run_ranks(mistakes, p, "all_reduce", all_reduce_that_forgets_the_rest))
