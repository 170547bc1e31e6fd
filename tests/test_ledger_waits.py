"""Waits are told as they begin, to whoever follows the calls, and to nobody behind the block."""

from __future__ import annotations

import threading
from time import monotonic
from unittest.mock import patch

import torch
import torch.distributed as dist
from ledger_help import fresh_ledger
from rig import run_ranks

from tpcourse import ledger
from tpcourse.ledger.waits import following, noting_waits


def _followed(rank, group):
    told = []
    with fresh_ledger(), following(lambda work, events: told.append([event.op for event in events])) as works:
        one = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        two = dist.all_gather([torch.ones(2) for _ in range(2)], torch.ones(2), group=group, async_op=True)
        before = [*told]
        two.wait()
        one.wait()
        num_works = len(works)
    return before, told, num_works


def test_each_wait_names_the_calls_that_it_is_for():
    assert run_ranks(_followed, 2) == [([], [["all_gather"], ["all_reduce"]], 2)] * 2


def _nested(rank, group):
    told = []
    with fresh_ledger(), following(lambda *_: told.append("outer")):
        one = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        with following(lambda *_: told.append("inner")), noting_waits(lambda work: told.append("any")):
            two = dist.all_reduce(torch.ones(2), group=group, async_op=True)
            one.wait()
            two.wait()
    return told


def test_inner_blocks_hear_of_a_wait_first_and_each_of_the_calls_that_began_in_it():
    assert run_ranks(_nested, 2) == [["any", "outer", "any", "inner", "outer"]] * 2


def _skipped(rank, group):
    with fresh_ledger():
        with noting_waits(lambda work: True):
            work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
            skipped = work.wait()
        told = []
        with noting_waits(told.append):
            work.wait()
        dist.barrier(group)
    return skipped, len(told)


def test_a_wait_of_which_the_note_says_true_is_left_out_and_behind_the_block_nothing_is_noted():
    assert run_ranks(_skipped, 2) == [(True, 1)] * 2


def _functions(rank, group):
    with fresh_ledger():
        pending = ledger._recorder().pending
        before = dist.Work.wait, {*vars(pending)}
        with noting_waits(lambda work: None), following(lambda work, events: None):
            return before == (dist.Work.wait, {*vars(pending)})


def test_a_block_replaces_no_function_for_a_grader_to_find_after_a_hang():
    assert run_ranks(_functions, 2) == [True] * 2


def _left_behind(rank, group):
    told = []
    with fresh_ledger():
        block = following(lambda work, events: told.append(work))
        works = block.__enter__()
        ledger.reset()  # as after a hang, whose thread never leaves its block
        dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()
        found = [*told], [*works]
        block.__exit__(None, None, None)
        dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()
    return found


def test_a_block_that_a_hang_left_behind_hears_and_holds_nothing_more():
    assert run_ranks(_left_behind, 2) == [([], [])] * 2


def _has_ended(log):
    """Look until the ledger has let go of every call, as it does when the next one begins."""
    while ledger._recorder().pending.handles():
        ledger.poll()
    return [event.wait_begin_s is None and event.end_s is not None for event in log._events]


def _kept(expected):
    """How much the ledger remembers, once gloo's thread has let go too."""
    pending, end = ledger._recorder().pending, monotonic() + 10
    while (kept := len(pending._ended_works) + len(pending._ended_storages)) != expected and monotonic() < end:
        pass
    return kept


def _late_waits(rank, group):
    import torch.distributed._functional_collectives as functional

    with fresh_ledger(), ledger.ledger() as log:
        whole = functional.all_gather_tensor(torch.ones(2), 0, group)
        x = torch.ones(2)
        work = dist.all_reduce(x, group=group, async_op=True)
        before = _has_ended(log)
        functional.wait_tensor(whole)
        waited_first = [event.waited_s is not None for event in log._events]
        work.wait()
        waited_then = [event.waited_s is not None for event in log._events]
        late = all(event.wait_begin_s >= event.end_s for event in log._events)
    return before, waited_first, waited_then, late


def test_a_wait_for_a_call_that_the_ledger_let_go_of_is_noted_too():
    assert run_ranks(_late_waits, 2) == [([True, True], [True, False], [True, True], True)] * 2


def _polled(rank, group):
    """Calls that are waited for at once, while another thread looks all the time which calls have ended."""
    is_over = threading.Event()

    def look():
        while not is_over.is_set():
            ledger.poll()

    with fresh_ledger(), ledger.ledger() as log:
        watcher = threading.Thread(target=look)
        watcher.start()
        for _ in range(600):
            dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()
        is_over.set()
        watcher.join()
        return sum(event.wait_begin_s is None for event in log._events)


def test_a_wait_is_noted_though_another_thread_saw_the_call_end_before_it_returned():
    assert run_ranks(_polled, 2, timeout=60) == [0, 0]


def _seen_by_another(rank, group):
    """Whether a call that ended has an end as soon as another thread looks, and what the ledger keeps by the next."""
    with patch("tpcourse.ledger.pending.YOUNG_S", 60.0), fresh_ledger(), ledger.ledger() as log:  # however slow
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        while not work.is_completed():
            pass
        watcher = threading.Thread(target=ledger.poll)
        watcher.start()
        watcher.join()
        has_ended, young = log._events[0].end_s is not None, ledger._recorder().pending._young
        kept = len(young)
        dist.barrier(group)
        return has_ended, kept, len(young)


def test_an_end_that_another_thread_sees_is_noted_at_once_and_the_work_kept_until_the_caller_goes_on():
    assert run_ranks(_seen_by_another, 2) == [(True, 1, 0)] * 2


def _never_waited(rank, group):
    with fresh_ledger(), ledger.ledger() as log:
        x = torch.ones(2)
        work = dist.all_reduce(x, group=group, async_op=True)
        _has_ended(log)
        counts = [_kept(2)]
        del work
        counts.append(_kept(1))
        del x
        return [*counts, _kept(0)]


def test_a_call_that_nobody_waits_for_is_forgotten_with_its_work_and_its_memory():
    assert run_ranks(_never_waited, 2) == [[2, 1, 0]] * 2
