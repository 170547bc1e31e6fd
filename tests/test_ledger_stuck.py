"""What can be seen of a rank that is stuck, or that was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ledger_help import fresh_ledger
from rig import run_ranks

from tpcourse import ledger as lg
from tpcourse.ledger import board_waiting, read_board


def _watch(found, seen):
    """Ask from another thread what this one waits in, until it waits; the file `seen` is then there."""
    main = threading.get_ident()

    def watch():
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            waiting = lg.waiting()
            if main in waiting:
                found.append(waiting)
                break
            time.sleep(0.01)
        seen.touch()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def _stuck_for_a_while(rank, group, road, seen):
    x = torch.ones(3)
    go = {"recv": lambda: dist.recv(x, 1, group), "all_reduce": lambda: dist.all_reduce(x, group=group),
          "functional": lambda: _functional(x, group), "handle": lambda: dist.irecv(x, 1, group).wait(),
          "monitored": lambda: dist.monitored_barrier(group)}
    if road == "functional":
        _functional(x, group)       # the first use imports for seconds
    dist.barrier(group)
    with fresh_ledger():
        if rank == 0:
            found = []
            thread = _watch(found, seen)
            go[road]()
            thread.join()
            return found, threading.get_ident(), lg.waiting()
        _wait_for(seen.exists)
        if road in ("recv", "handle"):
            dist.send(x, 0, group)
        else:
            go[road]()
    return None


def _functional(x, group):
    import torch.distributed._functional_collectives as functional

    functional.wait_tensor(functional.all_reduce(x, "sum", group))


@pytest.mark.parametrize("road", ["recv", "all_reduce", "functional", "handle", "monitored"])
def test_another_thread_sees_the_call_in_which_the_main_one_is_stuck(road, tmp_path):
    found, main, after = run_ranks(_stuck_for_a_while, 2, road, tmp_path / "seen")[0]
    (waiting,) = found
    expected = {"functional": "all_reduce", "handle": "recv", "monitored": "barrier"}.get(road, road)
    assert waiting[main].op == expected
    assert waiting[main].line.endswith("of test_ledger_stuck.py")
    assert waiting[main].end_s is None
    assert after == {}


def _ddp_waits(rank, group, seen):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 5), process_group=group)
    loss = model(torch.ones(2, 3)).sum()
    with fresh_ledger():
        if rank == 1:
            _wait_for(seen.exists)
            loss.backward()
            return None
        found = []
        thread = _watch(found, seen)
        loss.backward()
        thread.join()
        return found[0][threading.get_ident()].op


def test_a_wait_inside_the_c_plus_plus_reducer_of_ddp_is_seen(tmp_path):
    assert run_ranks(_ddp_waits, 2, tmp_path / "seen")[0] == "all_reduce"


def _receive_for_ever(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    dist.init_process_group("gloo", f"file://{folder}/meet", timedelta(seconds=60), world_size=2, rank=rank)
    x = torch.ones(3)
    lg.install(f"{folder}/board-{rank}")
    dist.all_reduce(x)
    if rank == 0:
        dist.recv(x, 1)
    time.sleep(60)


def test_the_board_of_a_stuck_rank_is_readable_also_after_kill_9(tmp_path):
    context = multiprocessing.get_context("forkserver")
    calls = [(rank, str(tmp_path)) for rank in range(2)]
    ranks = [context.Process(target=_receive_for_ever, args=call, daemon=True) for call in calls]
    try:
        for process in ranks:
            process.start()
        _wait_for(lambda: [e.op for e in board_waiting(tmp_path / "board-0")] == ["recv"])
        stuck = read_board(tmp_path / "board-0")
        os.kill(ranks[0].pid, signal.SIGKILL)
        ranks[0].join()
        assert read_board(tmp_path / "board-0") == stuck
        assert [(e.op, e.end_s is None) for e in stuck] == [("all_reduce", False), ("recv", True)]
        assert [e.op for e in board_waiting(tmp_path / "board-0")] == ["recv"]
        assert board_waiting(tmp_path / "board-1") == []
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except FileNotFoundError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"did not happen within {seconds} s")


def _reset(rank, group):
    x = torch.ones(2)
    with fresh_ledger():
        dist.all_reduce(x, group=group)
        request = dist.irecv(x, 1 - rank, group)
        lg.reset()
        dist.all_reduce(x, group=group)
        numbers = [e.seq for e in lg.recent() if e.op == "all_reduce"], lg.waiting(), len(lg.fingerprints())
        dist.send(x, 1 - rank, group) if rank else request.wait()
        request.wait() if rank else dist.send(x, 1 - rank, group)
    return numbers


def test_after_a_reset_numbers_begin_at_1_and_earlier_calls_are_forgotten():
    assert run_ranks(_reset, 2) == [([1], {}, 1)] * 2


def _broken_ledger(rank, group):
    x = torch.ones(2)
    lg.install()
    try:
        lg._installed[0].places.origin = None
        dist.all_reduce(x, group=group)
        return x.tolist(), lg.ledger_fault()
    finally:
        lg.uninstall()


def test_a_fault_of_the_ledger_is_noted_and_never_breaks_the_call():
    for values, fault in run_ranks(_broken_ledger, 2):
        assert values == [2.0, 2.0]
        assert "TypeError" in fault


def _many_handles(rank, group):
    x = torch.ones(2)
    with fresh_ledger():
        for _ in range(600):
            dist.all_reduce(x, group=group, async_op=True)
        dist.barrier(group)
        lg.poll()
        return len(lg._installed[0].pending.handles())


def test_handles_that_nobody_waits_for_are_let_go_when_they_complete():
    assert run_ranks(_many_handles, 2) == [0, 0]
