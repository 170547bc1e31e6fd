"""Every operation of torch.distributed is seen once, with the bytes of its formula."""

from __future__ import annotations

from contextlib import contextmanager
from fractions import Fraction
from math import ceil

import pytest
import torch
import torch.distributed as dist
from ledger_help import all_gather_single, fresh_ledger, reduce_scatter_single
from rig import close_team, run_ranks

from tpcourse.ledger import ledger

P = (2, 3, 4)
ITEM = 4        # bytes of a float32


def _operations(rank, p, group, n):
    """Name -> a call of one operation; n elements are not a multiple of p for every p."""
    x = torch.arange(n * p, dtype=torch.float32).reshape(p, n)
    piece, rows = x[rank], list(torch.zeros(p, n))
    root = p - 1
    counts = [(rank + i) % 3 for i in range(p)]     # to and from rank i
    few = torch.zeros(sum(counts), n)
    return {
        "all_reduce": lambda: dist.all_reduce(piece, dist.ReduceOp.MAX, group),
        "all_gather": lambda: dist.all_gather(rows, piece, group),
        "all_gather_single": lambda: all_gather_single(torch.zeros(p * n), piece, group),
        "reduce_scatter": lambda: dist.reduce_scatter(rows[0], list(x), group=group),
        "reduce_scatter_single": lambda: reduce_scatter_single(rows[0], x.flatten(), group=group),
        "broadcast": lambda: dist.broadcast(piece, root, group),
        "reduce": lambda: dist.reduce(piece, root, dist.ReduceOp.AVG, group),
        "gather": lambda: dist.gather(piece, rows if rank == root else None, root, group),
        "scatter": lambda: dist.scatter(rows[0], list(x) if rank == root else None, root, group),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros(p, n), x, group=group),
        "uneven": lambda: dist.all_to_all_single(few.clone(), few, counts, counts, group),
        "all_to_all": lambda: dist.all_to_all(rows, list(x), group),
        "barrier": lambda: dist.barrier(group),
    }


@contextmanager
def suppress_missing():
    """Go on where this version of gloo lacks an operation (all_to_all of lists is new)."""
    try:
        yield
    except RuntimeError as error:
        if "does not support" not in str(error):
            raise


def _run_all(rank, group, n):
    seen = {}
    with fresh_ledger():
        for name, operation in _operations(rank, dist.get_world_size(group), group, n).items():
            with ledger() as log, suppress_missing():
                operation()
            seen[name] = log.events
    return seen


def _bytes(name, rank, p, n):
    """(sent, received): the formulas of the course, written once more, with exact fractions."""
    piece, whole = n * ITEM, n * p * ITEM
    share = Fraction(p - 1, p)
    uneven = [n * ITEM * ((rank + i) % 3) for i in range(p) if i != rank]
    is_root = rank == p - 1
    return {
        "all_reduce": (ceil(2 * share * piece),) * 2,
        "all_gather": (ceil(share * whole), whole - piece),
        "all_gather_single": (ceil(share * whole), whole - piece),
        "reduce_scatter": (ceil(share * whole),) * 2,
        "reduce_scatter_single": (ceil(share * whole),) * 2,
        "broadcast": (piece, 0) if is_root else (0, piece),
        "reduce": (0, piece) if is_root else (piece, 0),
        "gather": (0, whole - piece) if is_root else (piece, 0),
        "scatter": (whole - piece, 0) if is_root else (0, piece),
        "all_to_all_single": (whole - piece,) * 2,
        "uneven": (sum(uneven), sum(uneven)),
        "all_to_all": (whole - piece,) * 2,
        "barrier": (0, 0),
    }[name]


@pytest.mark.parametrize("n", [12, 5])
@pytest.mark.parametrize("p", P)
def test_each_operation_is_one_event_with_the_bytes_of_its_formula(p, n):
    for rank, seen in enumerate(run_ranks(_run_all, p, n)):
        for name, events in seen.items():
            (event,) = events
            assert (event.bytes_sent, event.bytes_received) == _bytes(name, rank, p, n), (name, rank)
            if name != "all_to_all":
                assert event.end_s is not None
                assert event.end_s >= event.begin_s


def test_an_event_tells_operation_shape_dtype_reduction_root_and_splits():
    p, n = 3, 5
    seen = run_ranks(_run_all, p, n)[1]
    told = {name: (e.op, e.shape, e.dtype, e.reduction, e.peer, e.splits) for name, (e,) in seen.items()}
    f = "float32"
    assert told == {
        "all_reduce": ("all_reduce", (n,), f, "max", None, None),
        "all_gather": ("all_gather", (n,), f, None, None, None),
        "all_gather_single": ("all_gather", (n,), f, None, None, None),
        "reduce_scatter": ("reduce_scatter", (p * n,), f, "sum", None, None),
        "reduce_scatter_single": ("reduce_scatter", (p * n,), f, "sum", None, None),
        "broadcast": ("broadcast", (n,), f, None, 2, None),
        "reduce": ("reduce", (n,), f, "avg", 2, None),
        "gather": ("gather", (n,), f, None, 2, None),
        "scatter": ("scatter", (n,), f, None, 2, None),
        "all_to_all_single": ("all_to_all", (p, n), f, None, None, None),
        "uneven": ("all_to_all", (3, n), f, None, None, (1, 2, 0)),
        "all_to_all": ("all_to_all", (p * n,), f, None, None, None),
        "barrier": ("barrier", (), "", None, None, None),
    }
    assert seen["all_reduce"][0].offset == n        # the second row of x
    assert [e.seq for events in seen.values() for e in events] == list(range(1, len(seen) + 1))
    common = {(e.rank, e.axis, e.group, e.is_async) for (e,) in seen.values()}
    assert common == {(1, "world", (0, 1, 2), False)}


def _messages(rank, group):
    p = dist.get_world_size(group)
    x, y = torch.arange(6.0), torch.zeros(6)
    right, left = (rank + 1) % p, (rank - 1) % p
    with fresh_ledger(), ledger() as log:
        if rank == 0:
            dist.send(x[2:5], 1, group, tag=7)
        elif rank == 1:
            dist.recv(y[:3], None, group, tag=7)
            assert y[:3].tolist() == [2, 3, 4]
        request = dist.isend(x, right, group)
        dist.recv(y, left, group)
        request.wait()
        pair = [dist.P2POp(dist.isend, x, right, group), dist.P2POp(dist.irecv, y, left, group)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
    return log


@pytest.mark.parametrize("p", P)
def test_messages_count_per_direction_and_name_the_other_rank(p):
    logs = run_ranks(_messages, p)
    told = [[(e.op, e.peer, e.seq, e.numel, e.is_async) for e in log.events] for log in logs]
    last = p - 1
    ring = [("send", 1, 2, 6, True), ("recv", last, 1, 6, False),
            ("send", 1, 3, 6, True), ("recv", last, 2, 6, True)]
    assert told[0] == [("send", 1, 1, 3, False), *ring]
    right = 2 % p
    assert told[1] == [("recv", 0, 1, 3, False), ("send", right, 1, 6, True), ("recv", 0, 2, 6, False),
                       ("send", right, 2, 6, True), ("recv", 0, 3, 6, True)]
    first = logs[0].events[0]
    assert (first.offset, first.tag, first.bytes_sent, first.bytes_received) == (2, 7, 12, 0)
    assert all(event.end_s is not None for log in logs for event in log.events)


def _in_subgroups(rank, group):
    pairs = [dist.new_group([0, 2], group_desc="mesh_tp"), dist.new_group([1, 3], group_desc="mesh_tp")]
    unnamed = [dist.new_group([2, 3]), dist.new_group([2, 3])]
    mine = pairs[rank % 2]
    x = torch.ones(4)
    with fresh_ledger(), ledger() as log:
        dist.broadcast(x, 2 + rank % 2, mine)
        if rank < 2:
            dist.send(x, rank + 2, mine)
        else:
            dist.recv(x, rank - 2, mine)
            order = unnamed if rank == 2 else reversed(unnamed)
            for work in [dist.all_reduce(x, group=g, async_op=True) for g in order]:
                work.wait()
    return log


def test_groups_have_the_name_of_their_axis_and_ranks_are_global():
    close_team(4)  # in ranks that other tests used, these would not be the first groups of their name
    logs = run_ranks(_in_subgroups, 4)
    close_team(4)
    told = [[(e.op, e.label, e.group, e.peer, e.seq) for e in log.events] for log in logs]
    assert told[1] == [("broadcast", "tp", (1, 3), 3, 1), ("send", "tp", (1, 3), 3, 1)]
    both = [("all_reduce", "group 2,3", (2, 3), None, 1), ("all_reduce", "group 2,3 (2)", (2, 3), None, 1)]
    assert told[2] == [("broadcast", "tp", (0, 2), 2, 1), ("recv", "tp", (0, 2), 0, 1), *both]
    assert told[3][2:] == both[::-1]        # the same names on both ranks, whichever comes first
    assert logs[2].count("all_reduce", axis="group 2,3") == 2
    assert logs[2].count("all_reduce", axis="tp") == 0


def _objects(rank, group):
    out = [None] * dist.get_world_size(group)
    with fresh_ledger(), ledger() as log:
        dist.all_gather_object(out, {"rank": rank}, group)
    assert out[1] == {"rank": 1}
    return log


def test_an_object_collective_shows_the_calls_that_it_is_made_of():
    for log in run_ranks(_objects, 2):
        assert [(e.op, e.dtype) for e in log.events] == [("all_gather", "int64"), ("all_gather", "uint8")]
        assert all(event.function == "_objects" for event in log.events)
