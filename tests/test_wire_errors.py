"""What `wire` refuses, and in which words."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rig import run_ranks

from tpcourse import wire
from tpcourse.wire import exchange

ROOTED = [f"{kind}{name}" for name in ("broadcast", "reduce", "scatter", "gather") for kind in ("", "naive_")]
ROOTED += ["tree_broadcast", "tree_reduce"]
SPLITTING = ["reduce_scatter", "ring_reduce_scatter", "halving_reduce_scatter", "scatter", "naive_scatter"]
JOINING = ["all_gather", "ring_all_gather", "doubling_all_gather", "gather", "naive_gather"]


def _refusal(rank, group, name, shape, options, requires_grad=False):
    x = torch.ones(shape, requires_grad=requires_grad)
    try:
        getattr(wire, name)(x, group=group, **options)
    except ValueError as error:
        return str(error)
    return "accepted"


def refusal(name, shape=4, requires_grad=False, **options):
    """What both of two ranks say, which must be refused before any message is sent."""
    return run_ranks(_refusal, 2, name, shape, options, requires_grad)


@pytest.mark.parametrize("root", [2, -1, 1.0, None])
@pytest.mark.parametrize("name", ROOTED)
def test_a_root_outside_the_group_is_refused_with_the_ranks_there_are(name, root):
    sentence = f"root = {root} is not a rank of this group of 2: use 0 to 1 (counted within the group)"
    assert refusal(name, root=root) == [sentence] * 2


@pytest.mark.parametrize("name", SPLITTING + JOINING)
def test_a_wrong_number_of_sizes_is_refused(name):
    sentence = "3 sizes for a group of 2 ranks: give one size per rank, 0 for an empty piece"
    assert refusal(name, sizes=[4, 4, 4]) == [sentence] * 2


@pytest.mark.parametrize("name", SPLITTING)
def test_sizes_that_do_not_fill_the_tensor_are_refused(name):
    sentence = "sizes = [1, 2] sum to 3, but dim 0 is 4 long: the pieces must fill it"
    assert refusal(name, sizes=[1, 2]) == [sentence] * 2
    assert "none negative" in refusal(name, sizes=[5, -1])[0]


@pytest.mark.parametrize("name", JOINING)
def test_sizes_that_contradict_the_shard_are_refused(name):
    said = refusal(name, sizes=[5, 6])
    assert said[1] == (
        "sizes[1] = 6, but this rank's own piece is 4 long in dim 0: give sizes[1] = 4, and the same list on every rank"
    )


@pytest.mark.parametrize("name", SPLITTING + JOINING + ["all_to_all", "pairwise_all_to_all"])
def test_a_scalar_cannot_be_cut(name):
    sentence = "a tensor of shape [] cannot be cut along dim 0: reshape it to one dimension, x.reshape(1)"
    assert refusal(name, shape=()) == [sentence] * 2


def test_a_dim_that_is_not_there_is_refused():
    assert refusal("all_gather", dim=1)[0] == "a tensor of shape [4] cannot be cut along dim 1: use 0 to 0"


def test_an_unknown_operation_is_refused():
    for name in ("all_reduce", "reduce_scatter", "reduce"):
        assert refusal(name, op="mean")[0] == "op = 'mean' is unknown: use one of sum, avg, max, min, product"


def test_all_to_all_needs_sizes_where_p_does_not_divide():
    assert "does not divide by 2 ranks" in refusal("all_to_all", shape=5)[0]
    assert (
        "sizes[0] = 4, but this rank's own piece is 1 long"
        in refusal("pairwise_all_to_all", send_sizes=[1, 3], receive_sizes=[4, 4])[0]
    )


@pytest.mark.parametrize("name", sorted(set(wire.__all__) - {"exchange", "send", "receive"}))
def test_a_tensor_that_needs_a_gradient_is_refused_since_it_would_be_lost(name):
    assert all("tpcourse.conjugates" in said for said in refusal(name, requires_grad=True))


def _outside(rank, group):
    pair = dist.new_group([0, 1])
    if rank < 2:
        return "inside"
    try:
        wire.ring_all_reduce(torch.ones(2), group=pair)
    except ValueError as error:
        return str(error)
    return "accepted"


def test_a_rank_outside_the_group_is_refused():
    assert run_ranks(_outside, 3)[2].startswith("rank 2 is not in this group: only the group's own ranks may call")


def _exchange_refusals(rank, group):
    x, said = torch.zeros(4), []
    for arguments in (
        (x, rank, None, None),
        (x, 5, None, None),
        (x, None, None, None),
        (None, None, None, 1 - rank),
        (None, None, torch.zeros(4, 2).T, 1 - rank),
        (x[:3], 1 - rank, x[2:], 1 - rank),
    ):
        try:
            exchange(*arguments, group=group)
            said.append("accepted")
        except ValueError as error:
            said.append(str(error).split(":")[0])
    return said


def test_exchange_refuses_peers_and_tensors_that_cannot_work():
    assert run_ranks(_exchange_refusals, 2)[0] == [
        "to = 0 is this rank itself",
        "to = 5 is not a rank of this group of 2",
        "to = None and its tensor belong together",
        "from_ = 1 and its tensor belong together",
        "the tensor to receive into (shape [2, 4], strides [1, 2]) is not contiguous",
        "the outgoing and the incoming tensor share memory",
    ]
