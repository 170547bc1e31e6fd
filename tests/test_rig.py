"""The rig runs real ranks, keeps them, and never hides or outlives a failure."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from rig import RankFailureError, close_team, run_ranks


def _sum_of_ranks(rank, group):
    x = torch.full((2,), float(rank), dtype=torch.float64)
    dist.all_reduce(x, group=group)
    return x, os.getpid(), torch.get_default_dtype(), torch.get_num_threads()


def test_ranks_are_processes_that_talk():
    results = run_ranks(_sum_of_ranks, 3)
    assert all(torch.equal(x, torch.full((2,), 3.0, dtype=torch.float64)) for x, *_ in results)
    assert len({pid for _, pid, *_ in results} | {os.getpid()}) == 4
    assert all(threads == 1 for *_, threads in results)


def _change_dtype(rank, group):
    torch.set_default_dtype(torch.float64)
    return os.getpid(), torch.rand(1).item()


def test_the_same_ranks_serve_the_next_call_with_seed_and_dtype_as_new():
    first, second = run_ranks(_change_dtype, 2), run_ranks(_change_dtype, 2)
    assert first == second
    assert run_ranks(_sum_of_ranks, 2)[0][2] == torch.float32


def _raise_everywhere(rank, group):
    raise ValueError("the same on all")


def test_an_error_of_all_ranks_is_raised_once_with_the_ranks_and_the_traceback():
    with pytest.raises(ValueError, match="the same on all") as caught:
        run_ranks(_raise_everywhere, 2)
    (note,) = caught.value.__notes__
    assert note.startswith("raised on rank 0, 1:")
    assert "in _raise_everywhere" in note


def _raise_on_one(rank, group):
    if rank == 1:
        raise ValueError("only here")
    dist.barrier(group)


def test_a_rank_that_waits_for_one_that_raised_is_ended_and_named_with_its_line():
    before = time.monotonic()
    with pytest.raises(ValueError, match="only here") as caught:
        run_ranks(_raise_on_one, 2)
    notes = "\n".join(caught.value.__notes__)
    assert "rank 0 did not finish" in notes
    assert "in _raise_on_one" in notes
    assert time.monotonic() - before < 30
    assert run_ranks(_sum_of_ranks, 2)[0][0][0] == 1, "the next call has working ranks"


def _wait_for_ever(rank, group):
    if rank != 1:
        dist.barrier(group)


def test_ranks_that_do_not_finish_are_ended_and_named():
    with pytest.raises(RankFailureError, match="rank 0, 2 did not finish within 1 s") as caught:
        run_ranks(_wait_for_ever, 3, timeout=1)
    assert "in _wait_for_ever" in str(caught.value)


def _die(rank, group):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_that_died_is_named_with_its_exit_code():
    with pytest.raises(RankFailureError, match=r"rank 1 died \(exit code -9\)"):
        run_ranks(_die, 2)


def test_closing_a_team_leaves_no_process():
    pids = [pid for _, pid, *_ in run_ranks(_sum_of_ranks, 2)]
    close_team(2)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
