"""One made-up state per mistake: the sentence, word for word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_watch_simulator import Call, Machine, grid, same

from tpcourse.watch import Report, diagnose
from tpcourse.watch.report import WIDTH, fill

SUM = Call("all_reduce", 9, reduction="sum")
GATHER = Call("all_gather", 8)
ROOT = Call("broadcast", 5, peer=0)
TP = Call("all_reduce", 3, "tp", reduction="sum")
DP = Call("all_reduce", 4, "dp", reduction="sum")
PAIR = (0, 1)


def on_grid(programmes: list[list[Call]]) -> list[list[Call]]:
    return [[grid(call, rank) for call in calls] for rank, calls in enumerate(programmes)]


def told(programmes: list[list[Call]], **more: Any) -> Report:
    return diagnose(Machine(programmes).states(), **more)


def uneven(sent: tuple[int, int], received: tuple[int, int]) -> list[Call]:
    return [Call("all_to_all", 6, more={"splits": sent, "splits_received": received})]


CASES: dict[str, tuple[list[list[Call]], str, tuple[int, ...], str]] = {
    "a rank that returned early": (
        same(4, GATHER, SUM, r1=[GATHER]), "skipped call", (1,),
        "rank 1 never called all_reduce #2 on world: it returned at line 99, while ranks 0, 2-3 wait at line 9."),
    "two ranks that returned early": (
        same(8, SUM, r6=[], r7=[]), "skipped call", (6, 7),
        "ranks 6-7 never called all_reduce #1 on world: they returned at line 99, while ranks 0-5 wait at line 9."),
    "a rank that still computes": (
        same(4, GATHER, SUM, r1=[GATHER, Call("compute", 12)]), "computing", (1,),
        "rank 1 has not called all_reduce #2 on world: it is still computing at line 12, "
        "while ranks 0, 2-3 wait at line 9."),
    "a rank that went on to the next call": (
        [[ROOT, SUM], [SUM, GATHER]], "other operation", (0, 1),
        "rank 0 called broadcast #1 on world (line 5) where rank 1 called all_reduce (line 9): "
        "another operation, or the same calls in another order."),
    "a loop that is one round short": (
        same(4, *[SUM] * 10, r3=[SUM] * 9), "skipped call", (3,),
        "rank 3 has made 9 all_reduce calls on world, the others 10: it returned at line 99 "
        "without all_reduce #10 (line 9)."),
    "a call that only one rank makes": (
        same(4, SUM, r2=[SUM, replace(SUM, line=10)]), "skipped call", (2,),
        "only rank 2 called all_reduce #2 on world (line 10): ranks 0-1, 3 returned at line 99 without it."),
    "another operation": (
        same(4, SUM, r1=[replace(GATHER, line=11)]), "other operation", (1,),
        "rank 1 called all_gather #1 on world (line 11) where ranks 0, 2-3 called all_reduce (line 9): "
        "another operation, or the same calls in another order."),
    "another shape": (
        same(4, SUM, r1=[replace(SUM, shape=(2, 4))]), "other shape", (1,),
        "rank 1 called all_reduce #1 on world (line 9) with shape [2, 4], ranks 0, 2-3 with [4]."),
    "another dtype": (
        same(8, SUM, r1=[replace(SUM, dtype="int32", line=11)]), "other dtype", (1,),
        "rank 1 called all_reduce #1 on world (line 11) with dtype int32, ranks 0, 2-7 with float32 (line 9)."),
    "another reduction": (
        same(4, SUM, r2=[replace(SUM, reduction="max")]), "other reduction", (2,),
        "rank 2 called all_reduce #1 on world (line 9) with reduction max, ranks 0-1, 3 with sum."),
    "another root": (
        same(4, ROOT, r2=[replace(ROOT, peer=2)]), "other root", (2,),
        "rank 2 called broadcast #1 on world (line 5) with root 2, ranks 0-1, 3 with 0."),
    "splits that do not fit": (
        [uneven((1, 3), (1, 2)), uneven((2, 2), (2, 2))], "other splits", (0, 1),
        "rank 0 sends 3 rows to rank 1 in all_to_all #1 on world (line 6), but rank 1 expects 2 (line 6)."),
    "another axis": (
        on_grid(same(4, TP, r1=[DP])), "other group", (1,),
        "rank 1 called all_reduce #1 on dp (line 4) where ranks 0, 2-3 called all_reduce #1 on tp (line 3)."),
    "a message on another group": (
        [[Call("send", 3, peer=1)], [Call("recv", 4, "pair", PAIR, peer=0)]], "other group", (0, 1),
        "rank 0 sends to rank 1 on world (line 3) while rank 1 receives from rank 0 on pair (line 4)."),
    "a wrong peer": (
        [[], [Call("send", 3, peer=2)], [Call("recv", 4, peer=3)], [Call("recv", 4, peer=1)]], "wrong peer", (1, 2, 3),
        "rank 1 sends to rank 2 on world (line 3) while rank 2 receives from rank 3 on world (line 4): "
        "one of them names the wrong peer, or calls in another order (1 -> 2 -> 3 -> 1)."),
    "a wrong peer that is done": (
        [[Call("send", 3, peer=2)], [Call("recv", 4, peer=0)], []], "wrong peer", (0, 1, 2),
        "rank 0 waits in send #1 to rank 2 on world (line 3), but rank 2 never receives it: it returned at line 99, "
        "while rank 1 waits in recv #1 from rank 0 on world (line 4)."),
    "another tag": (
        [[Call("send", 3, peer=1)], [Call("recv", 4, peer=0, tag=2)]], "other tag", (0, 1),
        "rank 0 waits in send #1 to rank 1 on world (line 3) with tag 0, "
        "rank 1 in recv #1 from rank 0 on world (line 4) with tag 2."),
    "a message of another length": (
        [[Call("send", 3, peer=1)], [Call("recv", 4, peer=0, shape=(8,))]], "other shape", (0, 1),
        "rank 0 sends [4] float32 to rank 1 (send #1 on world, line 3), which receives into [8] float32 (line 4)."),
    "a send nobody receives": (
        [[Call("send", 3, peer=1)], []], "send without receive", (0, 1),
        "rank 0 waits in send #1 to rank 1 on world (line 3), but rank 1 never receives it: it returned at line 99."),
    "a receive nobody sends": (
        [[], [Call("recv", 3, peer=0)]], "receive without send", (0, 1),
        "rank 1 waits in recv #1 from rank 0 on world (line 3), but rank 0 never sends it: it returned at line 99."),
    "everybody sends first": (
        [[Call("send", 3, peer=(r + 1) % 3), Call("recv", 4, peer=(r - 1) % 3)] for r in range(3)], "cycle", (0, 1, 2),
        "ranks 0-2 all send first and none receives (line 3): on world they wait in a circle 0 -> 1 -> 2 -> 0."),
    "everybody receives first": (
        [[Call("recv", 4, peer=1 - r), Call("send", 5, peer=1 - r)] for r in range(2)], "cycle", (0, 1),
        "ranks 0-1 all receive first and none sends (line 4): on world they wait in a circle 0 -> 1 -> 0."),
    "two groups crosswise": (
        on_grid([[DP, TP], [TP, DP], [TP, DP], [DP, TP]]), "crosswise", (0, 1, 2, 3),
        "dp and tp are used crosswise: ranks 0, 3 are already in all_reduce #1 on dp (line 4), "
        "ranks 1-2 are already in all_reduce #1 on tp (line 3), so they wait in a circle 0 -> 2 -> 3 -> 1 -> 0."),
    "a collective and a message crosswise": (
        [[SUM, Call("send", 4, peer=1)], [Call("recv", 5, peer=0), SUM]], "cycle", (0, 1),
        "ranks 0-1 wait in a circle 0 -> 1 -> 0: rank 0 is in all_reduce #1 on world (line 9), "
        "rank 1 is in recv #1 from rank 0 on world (line 5)."),
    "a rank that raised": (
        same(4, GATHER, SUM, r1=[GATHER, Call("raise", 5, text="ValueError: no such thing")]), "raised", (1,),
        "rank 1 raised ValueError: no such thing (line 5); "
        "ranks 0, 2-3 wait for it in all_reduce #2 on world (line 9)."),
    "a rank that was killed": (
        same(4, GATHER, SUM, r1=[GATHER, Call("die", 5, text="killed by signal 9 (SIGKILL)")]), "died", (1,),
        "rank 1 died at line 5: killed by signal 9 (SIGKILL), perhaps out of memory; "
        "ranks 0, 2-3 wait for it in all_reduce #2 on world (line 9)."),
    "a rank that ended itself": (
        same(2, SUM, r0=[Call("die", 5, text="exit code 3")]), "died", (0,),
        "rank 0 died at line 5: exit code 3; rank 1 waits for it in all_reduce #1 on world (line 9)."),
    "a rank that raised, awaited in two calls": (
        on_grid(same(4, TP, DP, r1=[Call("raise", 5, text="ValueError: no")])), "raised", (1,),
        "rank 1 raised ValueError: no (line 5); rank 0 waits for it in all_reduce #1 on tp (line 3); "
        "rank 3 waits for it in all_reduce #1 on dp (line 4)."),
    "a rank that does not answer": (
        same(4, SUM, r2=[Call("hold", 12)]), "silent", (2,),
        "rank 2 has not called all_reduce #1 on world: it does not answer, last seen at line 12, "
        "while ranks 0-1, 3 wait at line 9."),
    "a barrier that a rank does not reach": (
        same(4, Call("barrier", 6, shape=(), dtype=""), r3=[]), "skipped call", (3,),
        "rank 3 never called barrier #1 on world: it returned at line 99, while ranks 0-2 wait at line 6."),
    "a call inside backward": (
        same(2, replace(SUM, more={"function": "copy_backward"}), r1=[]), "skipped call", (1,),
        "rank 1 never called all_reduce #1 on world: it returned at line 99, "
        "while rank 0 waits at line 9, in backward."),
    "a rank in a call that is not a collective": (
        same(4, SUM, r2=[Call("elsewhere", 12)]), "waiting", (2,),
        "rank 2 has not called all_reduce #1 on world: it waits at line 12 in a call that is not a collective, "
        "while ranks 0-1, 3 wait at line 9."),
    "ranks that all compute": (
        same(4, Call("compute", 2)), "computing", (0, 1, 2, 3),
        "no rank waits for another: ranks 0-3 are computing at line 2."),
    "ranks that all finished": (
        same(2, SUM), "finished", (), "no rank waits: every rank has finished."),
}  # fmt: skip


@pytest.mark.parametrize("together", ["rank 3", "ranks 4", "line 4 of cell 7", "lines 5", "0 -> 1 -> 0"])
def test_no_line_of_a_report_ends_inside_a_name(together: str) -> None:
    for before in range(WIDTH - 25, WIDTH + 1):
        text = fill(f"{'x' * before} y {together}, z")
        assert together in text and max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_says(case: str) -> None:
    programmes, kind, ranks, sentence = CASES[case]
    report = told(programmes)
    assert (report.kind, report.ranks, report.sentence) == (kind, ranks, sentence)


@pytest.mark.parametrize("case", CASES)
def test_the_block_is_short_narrow_and_always_the_same(case: str) -> None:
    report = told(CASES[case][0])
    lines = str(report).splitlines()
    assert len(lines) <= 13
    assert max(map(len, lines)) <= 110
    assert report == told(CASES[case][0])
