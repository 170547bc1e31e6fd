"""The ledger on NCCL: calls without handles, ends told by the device, stuck kernels, graphs, backward."""

from __future__ import annotations

import multiprocessing
import threading
import time
import traceback
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ledger_help import all_gather_single, fresh_ledger

from tpcourse import ledger as lg
from tpcourse.ledger import ledger

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
pytestmark = [pytest.mark.gpu, two_gpus]


def _serve(rank, folder, fn, answers):
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    wait = timedelta(seconds=120)
    dist.init_process_group("nccl", f"file://{folder}/meet", wait, world_size=2, rank=rank, device_id=device)
    dist.barrier()
    with fresh_ledger(f"{folder}/board-{rank}"):
        try:
            answers.put((rank, fn(rank, device)))
        except Exception:
            answers.put((rank, traceback.format_exc()))
            raise
    dist.destroy_process_group()


def _run(fn, folder):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    calls = [(rank, str(folder), fn, answers) for rank in range(2)]
    ranks = [context.Process(target=_serve, args=call, daemon=True) for call in calls]
    try:
        for process in ranks:
            process.start()
        return dict(answers.get(timeout=60) for _ in ranks)
    finally:
        for process in ranks:
            process.join(20)
            process.kill()


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.contiguous()
        dist.all_reduce(total)
        return total


def _calls(rank, device):
    lg.set_main_thread(threading.get_ident())
    x, y, whole = torch.ones(4, device=device), torch.zeros(4, device=device), torch.zeros(8, device=device)
    leaf = torch.ones(2, device=device, requires_grad=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 5, device=device))
    lg.reset()      # DDP's constructor made calls of its own
    with ledger() as log:
        dist.all_reduce(x, dist.ReduceOp.MAX)
        dist.all_reduce(x, async_op=True).wait()
        all_gather_single(whole, x)
        dist.send(x, 1) if rank == 0 else dist.recv(y, 0)
        pair = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        dist.barrier()
        _Sum.apply(leaf).sum().backward()
        model(torch.ones(2, 3, device=device)).sum().backward()
        dist.all_reduce(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dist.all_reduce(x)
        graph.replay()
        torch.cuda.synchronize()
    lg.poll()
    return log


def _stuck(rank, device):
    x = torch.ones(4, device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if rank == 1:
        time.sleep(2)
        dist.all_reduce(x)
        torch.cuda.synchronize()
        return None
    found = []

    def watch():
        time.sleep(1)
        found.extend([lg.waiting(), lg.board_waiting(lg._installed[0].board.path)])

    thread = threading.Thread(target=watch)
    thread.start()
    dist.all_reduce(x)
    torch.cuda.synchronize()
    thread.join()
    return *found, threading.get_ident(), lg.waiting()


def test_calls_on_nccl_are_seen_once_with_their_ends(tmp_path):
    for rank, log in _run(_calls, tmp_path).items():
        collectives = [e for e in log.events if not e.is_point_to_point]
        told = [(e.op, e.numel, e.reduction, e.is_async, e.seq) for e in collectives]
        assert told[:3] == [("all_reduce", 4, "max", False, 1), ("all_reduce", 4, "sum", True, 2),
                            ("all_gather", 4, None, False, 3)]
        assert [(e.op, e.numel) for e in collectives[3:]] == [
            ("barrier", 0), ("all_reduce", 2), ("all_reduce", 20), ("all_reduce", 4),
            ("all_reduce", 4)]
        messages = [(e.op, e.peer, e.seq) for e in log.events if e.is_point_to_point]
        first = ("send", 1, 1) if rank == 0 else ("recv", 0, 1)
        assert messages[0] == first
        assert sorted(messages[1:]) == [("recv", 1 - rank, 1 + rank), ("send", 1 - rank, 2 - rank)]
        assert all(event.end_s is not None for event in log.events), log.table()
        assert all(event.line.endswith("of test_ledger_gpu.py") for event in log.events), log.table()


def test_a_kernel_that_waits_on_the_device_counts_as_waited_in(tmp_path):
    waiting, board, thread, after = _run(_stuck, tmp_path)[0]
    assert waiting[thread].op == "all_reduce"
    assert [(e.op, e.end_s) for e in board] == [("all_reduce", None)]
    assert after == {}
