"""By whatever road a call comes, the ledger sees it: functional, DTensor, DDP, backward, threads, handles."""

from __future__ import annotations

import pickle
import threading

import torch
import torch.distributed as dist
from ledger_help import fresh_ledger, logged
from rig import run_ranks

from tpcourse import ledger as lg
from tpcourse.ledger import ledger, merge


def _told(log):
    return [(e.op, e.axis, e.numel, e.reduction) for e in log.events]


def _functional(rank, group):
    import torch.distributed._functional_collectives as functional

    x = torch.ones(6)

    def program():
        y = functional.all_reduce(x, "max", group) + 1
        functional.wait_tensor(functional.reduce_scatter_tensor(y, "sum", 0, group))
        functional.all_gather_tensor(y, 0, group).sum()

    return logged(program)


def test_functional_collectives_are_seen_with_their_end_and_the_line_that_called_them():
    for log in run_ranks(_functional, 2):
        assert _told(log) == [("all_reduce", "world", 6, "max"), ("reduce_scatter", "world", 6, "sum"),
                              ("all_gather", "world", 6, None)]
        assert all(event.waited_s is not None and event.end_s is not None for event in log.events)
        assert {event.function for event in log.events} == {"program"}
        lines = [event.line.removesuffix(" of test_ledger_roads.py") for event in log.events]
        assert lines == [f"line {_first(_functional) + n}" for n in range(3)]


def _first(fn):
    """Number of the first line in the body of the function `program` inside fn."""
    code = next(c for c in fn.__code__.co_consts if getattr(c, "co_name", "") == "program")
    return code.co_firstlineno + 1


def _dtensor(rank, group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = distribute_tensor(torch.ones(8, 4, requires_grad=True), mesh["tp"], [Shard(0)])
    w = distribute_tensor(torch.ones(4, 4), mesh["tp"], [Shard(1)])

    def program():
        y = x.redistribute(mesh["tp"], [Replicate()])
        (y @ w).to_local().sum().backward()

    return logged(program)


def test_dtensor_is_seen_forward_and_backward_on_its_axis():
    for rank, log in enumerate(run_ranks(_dtensor, 4)):
        assert _told(log) == [("all_gather", "tp", 16, None), ("reduce_scatter", "tp", 32, "sum")]
        assert {event.group for event in log.events} == {(0, 1) if rank < 2 else (2, 3)}


def _ddp(rank, group):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 5), process_group=group)

    def program():
        model(torch.ones(2, 3)).sum().backward()

    return logged(program)


def test_the_c_plus_plus_reducer_of_ddp_is_seen_inside_backward():
    for log in run_ranks(_ddp, 2):
        assert _told(log) == [("all_reduce", "world", 20, "sum")]
        (event,) = log.events
        assert event.line == f"line {_first(_ddp)} of test_ledger_roads.py"
        assert event.end_s is not None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def _autograd(rank, group):
    import torch.distributed.nn as with_backward

    x = torch.ones(4, requires_grad=True)

    def program():
        y = with_backward.all_reduce(_Sum.apply(x), group=group)
        y.sum().backward()

    return logged(program), x.grad


def test_calls_inside_autograd_are_seen_and_named_after_the_function_that_made_them():
    for log, gradient in run_ranks(_autograd, 2):
        assert [event.function for event in log.events] == ["program", "program", "backward"]
        assert gradient.tolist() == [4.0] * 4


def _other_modes(rank, group):
    x = torch.ones(4)

    def program():
        with torch.inference_mode():
            dist.all_reduce(torch.ones(2), group=group)
        with dist._coalescing_manager(group):
            dist.all_reduce(x, group=group)
            dist.all_reduce(x[:3], group=group)
        dist.monitored_barrier(group)

    return logged(program)


def test_inference_mode_coalescing_and_the_monitored_barrier_are_seen():
    for log in run_ranks(_other_modes, 2):
        assert _told(log) == [("all_reduce", "world", 2, "sum"), ("all_reduce", "world", 7, "sum"),
                              ("barrier", "world", 0, None)]
        assert log.events[1].shape == (7,)
        assert log.events[1].bytes_sent == 28
        assert log.events[2].end_s is not None


def _asynchronous(rank, group):
    x, y = torch.ones(4), torch.zeros(4)
    with fresh_ledger(), ledger() as log:
        work = dist.all_reduce(x, group=group, async_op=True)
        before = [event.is_async for event in log.events], lg.waiting()
        work.wait()
        after = log.events[0].end_s is not None
        request = dist.irecv(y, 1 - rank, group)
        unfinished = log.events[1].end_s
        if rank == 0:
            request.wait()
        dist.send(x, 1 - rank, group)
        if rank == 1:
            request.wait()
    return before, after, unfinished, [event.end_s is not None for event in log.events]


def test_an_asynchronous_call_ends_when_it_was_waited_for_and_is_not_waited_in_before():
    for before, after, unfinished, ended in run_ranks(_asynchronous, 2):
        assert before == ([True], {})
        assert after
        assert unfinished is None
        assert ended == [True] * 3


def _from_a_thread(rank, group):
    def program():
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(2),))
        thread.start()
        thread.join()

    return logged(program)


def test_a_log_sees_the_calls_of_other_threads():
    for log in run_ranks(_from_a_thread, 2):
        assert _told(log) == [("all_reduce", "world", 2, "sum")]


def _nested(rank, group):
    def call():
        dist.all_reduce(torch.ones(2), group=group)

    with fresh_ledger():
        with ledger() as outer:
            call()
            with ledger() as inner:
                call()
            call()
            late = ledger()
            later = late.__enter__()
            call()
        call()
        late.__exit__(None, None, None)
        call()
        for _ in range(300):
            call()
        return [[e.seq for e in log.events] for log in (outer, inner, later)], [e.seq for e in lg.recent()]


def test_logs_may_be_nested_and_overlap_and_without_one_only_256_calls_are_kept():
    for logs, recent in run_ranks(_nested, 2):
        assert logs == [[1, 2, 3, 4], [2], [4, 5]]
        assert recent == list(range(306 - 255, 307))


def _prints(rank, group, odd):
    x = torch.ones(6)
    with fresh_ledger():
        dist.all_reduce(x, group=group)
        if rank == odd:
            dist.all_reduce(x, dist.ReduceOp.MAX, group)
        else:
            dist.all_reduce(x, group=group)
        dist.send(x, 1, group) if rank == 0 else dist.recv(torch.ones(8 if rank == odd else 6), 0, group)
        prints = lg.fingerprints()
        lg.reset_fingerprints()
        assert not lg.fingerprints()
    return prints


def test_fingerprints_are_equal_where_ranks_agree_and_differ_where_they_do_not():
    right, wrong = run_ranks(_prints, 2, None), run_ranks(_prints, 2, 1)
    calls, message = ("world", (0, 1), 1), ("world", (0, 1), 1, 0, 1, 0)
    assert right[0] == right[1]
    assert right[0][calls][0] == 2
    assert right[0][message][0] == 1
    assert wrong[0][calls] == right[0][calls]
    assert wrong[1][calls] != wrong[0][calls]
    assert wrong[1][message] != wrong[0][message]


def _ring(rank, group, n):
    """A ring all-gather as a learner writes it."""
    p = dist.get_world_size(group)
    pieces = [torch.zeros(n) for _ in range(p)]
    with fresh_ledger(), ledger() as log:
        for step in range(p - 1):
            request = dist.isend(pieces[(rank - step) % p], (rank + 1) % p, group)
            dist.recv(pieces[(rank - step - 1) % p], (rank - 1) % p, group)
            request.wait()
    return pickle.loads(pickle.dumps(log))


def test_the_merged_log_of_a_ring_has_the_steps_and_bytes_of_the_formula():
    for p in (2, 3, 4):
        log = merge(run_ranks(_ring, p, 5))
        assert log.steps == p - 1
        assert log.rank(0).steps == p - 1
        assert log.bytes_sent == (p - 1) * 20
        assert log.total_bytes_sent == p * (p - 1) * 20
        assert log.ranks == list(range(p))


def _root_and_back(rank, group):
    """Everything to rank 0, one after the other, and back."""
    p, x = dist.get_world_size(group), torch.ones(3)
    with fresh_ledger(), ledger() as log:
        if rank:
            dist.send(x, 0, group)
            dist.recv(x, 0, group)
        else:
            for other in range(1, p):
                dist.recv(x, other, group)
            for other in range(1, p):
                dist.send(x, other, group)
    return log


def test_steps_count_what_had_to_follow_not_what_one_rank_sends():
    logs = run_ranks(_root_and_back, 4)
    assert merge(logs).steps == 6
    assert logs[0].steps == 6
