"""Every collective, torch's and those by hand, gives each rank what the one-device reference says."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
import wire_cases
from rig import run_ranks
from wire_cases import make, mistakes

from tpcourse import reference, wire

NAMES = [
    name
    for names in (
        wire_cases.ALL_REDUCES,
        wire_cases.REDUCE_SCATTERS,
        wire_cases.ALL_GATHERS,
        wire_cases.BROADCASTS,
        wire_cases.REDUCES,
        wire_cases.SCATTERS,
        wire_cases.GATHERS,
        wire_cases.ALL_TO_ALLS,
    )
    for name in names
]


def _join(lists: list[list[str]]) -> str:
    return "\n".join(sentence for sentences in lists for sentence in sentences)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", NAMES)
def test_each_rank_holds_what_the_reference_says(name, p):
    """Even, uneven and empty pieces, every root, not contiguous, the input untouched, the result its own."""
    assert _join(run_ranks(mistakes, p, name)) == ""


def test_every_function_of_wire_is_tried():
    assert set(NAMES) | {"exchange", "send", "receive"} == set(wire.__all__)


def _along_dims(rank, group):
    p, found = dist.get_world_size(group), []
    for dim in (0, 1, 2, -1):
        for sizes in ([2] * p, [r + 1 for r in range(p)], [0] * (p - 1) + [3]):
            shape = [2, 3, 4]
            shape[dim] = sum(sizes)
            xs = [make(r, tuple(shape)) for r in range(p)]
            shards = [x.split(sizes, dim)[r] for r, x in enumerate(xs)]
            mine = wire.reduce_scatter(xs[rank], group=group, dim=dim, sizes=sizes)
            all_of_it = wire.all_gather(shards[rank], group=group, dim=dim, sizes=sizes)
            if not torch.equal(mine, reference.reduce_scatter(xs, dim=dim, sizes=sizes)[rank]):
                found.append(f"reduce_scatter dim {dim} sizes {sizes}")
            if not torch.equal(all_of_it, reference.all_gather(shards, dim=dim)[rank]):
                found.append(f"all_gather dim {dim} sizes {sizes}")
    return found


@pytest.mark.parametrize("p", [2, 3, 4])
def test_pieces_may_lie_along_any_dim(p):
    assert _join(run_ranks(_along_dims, p)) == ""


def _operations(rank, group):
    xs = [make(r, (5, 2)) for r in range(dist.get_world_size(group))]
    found = []
    for op in reference.REDUCTIONS:
        pairs = {
            "all_reduce": (wire.all_reduce(xs[rank], group=group, op=op), reference.all_reduce(xs, op)),
            "reduce_scatter": (wire.reduce_scatter(xs[rank], group=group, op=op), reference.reduce_scatter(xs, op)),
            "reduce": (wire.reduce(xs[rank], root=1, group=group, op=op), reference.reduce(xs, 1, op)),
        }
        for name, (result, truths) in pairs.items():
            if truths[rank] is not None and not torch.allclose(result, truths[rank], rtol=1e-15):
                found.append(f"{name} {op}: expected {truths[rank]}, got {result}")
    return found


@pytest.mark.parametrize("p", [2, 3])
def test_sum_average_maximum_minimum_and_product_are_the_reference_s(p):
    assert _join(run_ranks(_operations, p)) == ""


def _in_a_subgroup(rank, group, name):
    members = [3, 1]  # global ranks, of which 1 is rank 0 of the group
    pair = dist.new_group(members)
    return mistakes(dist.get_rank(pair), pair, name) if rank in members else []


@pytest.mark.parametrize("name", NAMES)
def test_roots_and_peers_are_counted_within_the_group(name):
    assert _join(run_ranks(_in_a_subgroup, 4, name)) == ""


def _dtypes(rank, group):
    found, p = [], dist.get_world_size(group)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.complex128):
        xs = [make(r, (5,)).to(dtype) for r in range(p)]
        for name in ("all_reduce", "ring_all_reduce", "tree_all_reduce", "halving_doubling_all_reduce"):
            result = getattr(wire, name)(xs[rank], group=group)
            if result.dtype != dtype or not torch.equal(result, reference.all_reduce(xs)[rank]):
                found.append(f"{name} {dtype}: {result}")
    return found


def test_every_dtype_keeps_its_dtype():
    assert _join(run_ranks(_dtypes, 3)) == ""


def _bits(rank, group, name):
    x = torch.rand(1001, generator=torch.Generator().manual_seed(rank))
    return getattr(wire, name)(x, group=group).numpy().tobytes()


@pytest.mark.parametrize("name", wire_cases.ALL_REDUCES)
def test_an_all_reduce_gives_all_ranks_the_same_bits(name):
    """Replicated weights stay replicated only if their gradients are equal to the last bit."""
    assert len(set(run_ranks(_bits, 4, name))) == 1


def _warned(rank, group):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wire.all_gather(torch.ones(2), group=group)
        wire.reduce_scatter(torch.ones(4), group=group)
    return [str(warning.message) for warning in caught]


def test_no_call_uses_a_name_that_torch_has_replaced():
    assert run_ranks(_warned, 2) == [[], []]


def _old_torch(rank, group):
    taken = {
        name: dist.__dict__.pop(name) for name in ("all_gather_single", "reduce_scatter_single") if hasattr(dist, name)
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return mistakes(rank, group, "all_gather") + mistakes(rank, group, "reduce_scatter")
    finally:
        dist.__dict__.update(taken)


def test_the_names_before_torch_2_13_work_too():
    assert _join(run_ranks(_old_torch, 2)) == ""


def _ring_of_sends(rank, group):
    p = dist.get_world_size(group)
    big = torch.full((1 << 20,), float(rank))  # more than any buffer between two processes
    received = torch.empty_like(big)
    wire.exchange(big, (rank + 1) % p, received, (rank - 1) % p, group=group)
    return received[0].item(), received[-1].item()


def test_exchange_round_a_ring_does_not_deadlock():
    assert run_ranks(_ring_of_sends, 3) == [(2.0, 2.0), (0.0, 0.0), (1.0, 1.0)]
