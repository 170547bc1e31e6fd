"""A gloo group that was left does not keep a core busy."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from rig import run_ranks

from tpcourse.engine.quiet import Loops, _sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at this process in /proc")


def _cpu_seconds(rank, group):
    """Of rank 0 within a second, after its group spun over data for a receive whose memory is gone, and was quieted."""
    loops = Loops()
    pair = loops.watching(dist.new_group)
    begin = time.process_time()
    if rank == 0:
        gone = torch.empty(1 << 20)
        work = dist.irecv(gone, 1, group=pair)
        del gone, work
    dist.barrier(group)
    kept = dist.isend(torch.ones(1 << 20), 0, group=pair) if rank == 1 else dist.irecv(torch.empty(4), 1, pair, tag=5)
    if rank == 0:
        while time.process_time() - begin < 0.3:  # the group does spin
            time.sleep(0.01)
        loops.quiet([pair])
        begin, until = time.process_time(), time.monotonic() + 1
        while time.monotonic() < until and time.process_time() - begin < 0.3:
            time.sleep(0.01)
    found = time.process_time() - begin
    dist.barrier(group)
    return found if kept else None


def test_a_left_group_for_which_data_came_sleeps_once_it_is_quieted():
    assert run_ranks(_cpu_seconds, 2)[0] < 0.25


def _outlives_time_out(rank, group):
    """The call that a quieted group has under way ends by a time-out, which takes sockets out of the loop."""
    loops = Loops()
    pair = loops.watching(dist.new_group)
    work = dist.irecv(torch.empty(4), 1 - rank, group=pair)
    loops.quiet([pair])
    with pytest.raises(RuntimeError, match="Timed out"):
        work.wait(timedelta(seconds=0.5))
    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    return value.item()


def test_a_call_that_times_out_in_a_quieted_group_does_not_end_the_process():
    assert run_ranks(_outlives_time_out, 2) == [2.0, 2.0]


def _blocking(rank, group):
    """Which sockets of a quieted group would stop the thread that reads them."""
    loops = Loops()
    pair = loops.watching(dist.new_group)
    ((_, own),) = loops.loops
    loops.quiet([pair])
    numbers = [number for loop in own for number in _sockets(loop)]
    dist.barrier(group)
    return len(numbers), [number for number in numbers if os.get_blocking(number)]


def test_a_loop_that_is_about_to_read_as_it_is_quieted_does_not_stop_with_its_lock_held():
    for count, blocking in run_ranks(_blocking, 2):
        assert count and not blocking
