"""Calls that finished and did not agree are found; calls that agree, or cannot be compared, never are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_watch_simulator import Call, Machine, same

from tpcourse.watch import disagreements

SUM = Call("all_reduce", 9, reduction="sum")
ROOT = Call("broadcast", 5, peer=0)
LATER = {"is_async": True}


def lenient(programmes: list[list[Call]], finished: bool = True) -> list[list[Any]]:
    """The events of a backend that lets all calls through."""
    events = []
    for rank, calls in enumerate(programmes):
        machine = Machine([[] for _ in programmes])
        for call in calls:
            machine._post(rank, call)
        for event in machine.events[rank]:
            event.end_s = 1.0 if finished else None
        events.append(machine.events[rank])
    return events


FOUND = {
    "a dtype of the same size": (
        same(3, SUM, r1=[replace(SUM, dtype="int32")]), "other dtype",
        "rank 1 called all_reduce #1 on world (line 9) with dtype int32, ranks 0, 2 with float32."),
    "a reduction": (
        same(3, SUM, SUM, r2=[SUM, replace(SUM, reduction="max", line=11)]), "other reduction",
        "rank 2 called all_reduce #2 on world (line 11) with reduction max, ranks 0-1 with sum (line 9)."),
    "a root": (
        same(3, ROOT, r2=[replace(ROOT, peer=2)]), "other root",
        "rank 2 called broadcast #1 on world (line 5) with root 2, ranks 0-1 with 0."),
    "a broadcast into a larger tensor": (
        same(3, ROOT, r1=[replace(ROOT, shape=(8,))]), "other shape",
        "rank 1 called broadcast #1 on world (line 5) with shape [8], ranks 0, 2 with [4]."),
    "a message into a larger tensor": (
        [[Call("send", 3, peer=1)], [Call("recv", 4, peer=0, shape=(8,))]], "other shape",
        "rank 0 sends [4] float32 to rank 1 (send #1 on world, line 3), which receives into [8] float32 (line 4)."),
    "a broadcast that one rank left out": (
        [[ROOT, ROOT], [ROOT], [ROOT, ROOT]], "skipped call",
        "rank 1 never called broadcast #2 on world (line 5): it made 1 call on world, ranks 0, 2 made 2."),
    "another operation": (
        [[ROOT], [SUM]], "other operation",
        "rank 0 called broadcast #1 on world (line 5) where rank 1 called all_reduce (line 9): "
        "another operation, or the same calls in another order."),
}  # fmt: skip

QUIET = {
    "equal calls": same(3, SUM, ROOT),
    "another shape with as many elements": same(3, SUM, r1=[replace(SUM, shape=(2, 2))]),
    "calls on groups the others are not in": [
        *[[Call("all_reduce", 2, "a", (0, 1))] * 2] * 2, *[[Call("all_reduce", 2, "b", (2, 3))]] * 2],
    "uneven pieces of an all_to_all": [
        [Call("all_to_all", 6, shape=(3,), more={"splits": (1, 2), "splits_received": (1, 3)})],
        [Call("all_to_all", 6, shape=(7,), more={"splits": (3, 4), "splits_received": (2, 4)})]],
    "messages with tags in another order": [
        [Call("send", 3, peer=1, tag=1), Call("send", 3, peer=1, tag=2, shape=(8,))],
        [Call("recv", 4, peer=0, tag=2, shape=(8,)), Call("recv", 4, peer=0, tag=1)]],
    "no calls": [[], []],
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_a_silent_mismatch_is_found_in(case: str) -> None:
    programmes, kind, sentence = FOUND[case]
    report = disagreements(lenient(programmes))
    assert report is not None
    assert (report.kind, report.sentence) == (kind, sentence)
    assert disagreements(dict(enumerate(lenient(programmes)))) == report


@pytest.mark.parametrize("case", QUIET)
def test_nothing_is_said_about(case: str) -> None:
    assert disagreements(lenient(QUIET[case])) is None


@pytest.mark.parametrize("case", FOUND)
def test_unfinished_calls_are_left_out(case: str) -> None:
    assert disagreements(lenient(FOUND[case][0], finished=False)) is None


def test_an_uneven_all_gather_is_fine_while_the_whole_is_equal() -> None:
    events = lenient([[Call("all_gather", 3, shape=(1,))], [Call("all_gather", 3, shape=(3,))]])
    for calls in events:
        calls[0].bytes_sent = 8
    assert disagreements(events) is None


def test_histories_of_different_length_are_compared_by_number() -> None:
    events = lenient(same(3, *[SUM, ROOT] * 50))
    assert disagreements([events[0][-64:], events[1][-64:], events[2][-7:]]) is None
    events[2][-1].peer = 1
    report = disagreements([events[0][-64:], events[1][-64:], events[2][-7:]])
    assert report is not None
    assert report.sentence.startswith("rank 2 called broadcast #100 on world")


def test_a_rank_whose_history_no_longer_holds_a_group_is_not_said_to_have_skipped_it() -> None:
    pair = Call("broadcast", 2, "a", (0, 1), 0)
    many = [Call("all_reduce", 3, "b", (1, 2))] * 70
    events = lenient([[pair], [pair, *many], many])
    assert disagreements([events[0], events[1][-64:], events[2][-64:]]) is None


def test_a_rank_of_which_nothing_is_known_is_left_out() -> None:
    events: list[Any] = lenient(same(3, ROOT))
    events[1] = None
    assert disagreements(events) is None
