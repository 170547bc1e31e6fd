"""States that need care: ended processes, interrupts, short histories, asynchronous calls, rebuilt groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from test_watch_simulator import Call, Machine, same

from tpcourse.watch import diagnose

SUM = Call("all_reduce", 9, reduction="sum")
GATHER = Call("all_gather", 8)
ROOT = Call("broadcast", 5, peer=0)


def states(*args: Any, **more: Any) -> list[dict[str, Any]]:
    return Machine(*args, **more).states()


def ended(found: list[dict[str, Any]], rank: int, state: str, text: str) -> list[dict[str, Any]]:
    found[rank] |= {"state": state, "error" if state == "raised" else "exit": text}
    return found


def test_a_process_that_gloo_ended_is_reported_as_the_mismatch() -> None:
    found = states(same(4, SUM, r1=[replace(SUM, shape=(8,))]))
    report = diagnose(ended(found, 1, "dead", "killed by signal 6 (SIGABRT)"))
    assert report.kind == "other shape"
    assert report.sentence == (
        "rank 1 called all_reduce #1 on world (line 9) with shape [8], ranks 0, 2-3 with [4]; "
        "rank 1 was killed by signal 6 (SIGABRT), which is how gloo answers."
    )


def test_errors_that_only_follow_from_a_death_are_not_the_reason() -> None:
    found = ended(states(same(3, SUM, r1=[Call("die", 5, text="exit code 1")])), 0, "raised",
                  "RuntimeError: Connection closed by peer [127.0.0.1]:1")  # fmt: skip
    report = diagnose(found)
    assert (report.kind, report.ranks) == ("died", (1,))


def test_the_same_error_on_all_ranks_is_said_once() -> None:
    report = diagnose(states(same(4, Call("raise", 2, text="NameError: x"))))
    assert report.sentence == "ranks 0-3 raised NameError: x (line 2)."


def test_swapped_calls_that_both_went_through_are_called_another_order() -> None:
    found = states(same(4, ROOT, SUM, GATHER, r1=[SUM, ROOT, GATHER]))
    finish_all(found, same(4, ROOT, SUM, r1=[SUM, ROOT]), waiting=[GATHER] * 3)
    report = diagnose(found)
    assert (report.kind, report.ranks) == ("other order", (1,))
    assert report.sentence == (
        "rank 1 called all_reduce before broadcast on world from call #1 on (line 9), "
        "ranks 0, 2-3 broadcast before all_reduce (line 5)."
    )


def finish_all(found: list[dict[str, Any]], programmes: list[list[Call]], waiting: list[Call]) -> None:
    """Give every rank its calls as finished (a backend that let them through); rank 0 alone then waits in the last."""
    for rank, calls in enumerate(programmes):
        machine = Machine([[], *[[] for _ in programmes[1:]]])
        for call in calls + (waiting[:1] if rank == 0 else []):
            machine._post(rank, call)
        for event in machine.events[rank][: len(calls)]:
            event.end_s = 1.0
        found[rank] |= {"events": machine.events[rank], "state": "waiting" if rank == 0 else "done"}


def test_a_skipped_call_is_seen_when_the_others_went_on() -> None:
    found = states(same(3, SUM))
    finish_all(found, [[ROOT, SUM], [SUM], [ROOT, SUM]], waiting=[GATHER])
    report = diagnose(found)
    assert (report.kind, report.ranks) == ("skipped call", (1,))
    assert report.sentence == (
        "rank 1 did not call broadcast #1 on world (line 5 on ranks 0, 2): it went on to all_reduce (line 9)."
    )


def test_an_interrupt_says_where_each_rank_was() -> None:
    report = diagnose(states(same(3, SUM, r2=[Call("compute", 12)])), interrupted=True)
    assert report.sentence.startswith("You stopped the cell. Rank 2 has not called all_reduce #1 on world: it is still")
    assert "computing at line 12" in report.text


def test_an_interrupt_that_reached_a_rank_is_not_its_error() -> None:
    found = states(same(2, Call("raise", 7, text="KeyboardInterrupt: ")))
    assert diagnose(found, interrupted=True).sentence == (
        "You stopped the cell. No rank waits for another: ranks 0-1 are computing at line 7."
    )


def test_a_rank_that_did_not_run_the_cell_is_named_as_such() -> None:
    found = states(same(3, SUM, r1=[]))
    found[1] |= {"state": "idle", "line": None}
    assert diagnose(found).sentence == (
        "rank 1 never called all_reduce #1 on world: it did not run this cell, while ranks 0, 2 wait at line 9."
    )


def test_without_a_line_the_last_call_tells_where_a_rank_returned() -> None:
    found = states(same(2, GATHER, SUM, r1=[GATHER]), end=None)
    assert "it returned after all_gather #1 on world (line 8), while rank 0 waits" in diagnose(found).sentence


def test_seconds_are_rounded_and_only_said_when_given() -> None:
    found = states(same(2, SUM, r1=[]))
    assert "No progress" not in str(diagnose(found))
    found[0]["seconds"] = 19.7
    assert str(diagnose(found)).endswith("No progress for 20 s.")


def test_asynchronous_calls_do_not_hold_a_rank_up_but_count_as_made() -> None:
    later = replace(SUM, more={"is_async": True})
    report = diagnose(states(same(3, later, GATHER, r1=[later])))
    assert (report.kind, report.ranks) == ("skipped call", (1,))
    assert "rank 1 never called all_gather #2 on world" in report.sentence


def test_a_rank_that_waits_for_an_asynchronous_call_waits_in_it() -> None:
    later = replace(SUM, more={"is_async": True})
    report = diagnose(states(same(2, later, Call("elsewhere", 10), r1=[])))
    assert report.sentence.startswith("rank 1 never called all_reduce #1 on world: it returned")


def test_a_short_history_is_compared_by_number() -> None:
    found = states(same(3, *[GATHER, SUM] * 50, r2=[GATHER, SUM] * 49 + [GATHER]))
    found[0]["events"] = found[0]["events"][-10:]
    found[1]["events"] = found[1]["events"][-64:]
    report = diagnose(found)
    assert report.sentence.startswith("rank 2 never called all_reduce #100 on world")


def test_calls_from_before_the_groups_were_made_again_do_not_count() -> None:
    old = Machine(same(2, GATHER, SUM, SUM, SUM)).events
    found = states(same(2, GATHER, SUM, r1=[GATHER]))
    for rank, state in enumerate(found):
        state["events"] = old[rank] + state["events"]
    assert diagnose(found).sentence.startswith("rank 1 never called all_reduce #2 on world")


def test_everybody_in_one_call_that_does_not_finish_is_not_explained_away() -> None:
    found = states(same(2, SUM))
    for state in found:
        state["state"], state["events"][0].end_s = "waiting", None
    assert diagnose(found).sentence == ("ranks 0-1 wait in all_reduce #1 on world (line 9), which has not finished.")


def test_many_ranks_are_grouped_and_the_rest_is_counted() -> None:
    programmes = [[Call("send", r, peer=(r + 1) % 32)] for r in range(32)]
    report = diagnose(states(programmes))
    assert "0 -> 1 -> 2 -> 3 -> 4 -> ... -> 30 -> 31 -> 0" in report.sentence
    assert "  6-31: not shown" in report.text.splitlines()
