"""The data that pictures are drawn from."""

from dataclasses import replace

import pytest
from test_draw_helpers import collectives, event, log_of

from tpcourse.draw import ALGORITHMS, bands, holdings, intervals, play, steps
from tpcourse.draw.rounds import Message, placed, unmatched
from tpcourse.draw.spans import Interval, together
from tpcourse.draw.symbols import OPS, Cell, origins, values
from tpcourse.ledger import Log, merge

RUNS = [(name, p) for name in ALGORITHMS for p in (2, 3, 4, 8) if "halving" not in name or p != 3]


def texts(row):
    return [cell and str(cell) for cell in row]


@pytest.mark.parametrize(("name", "p"), RUNS)
@pytest.mark.parametrize("times", [1, 2])
def test_every_algorithm_ends_with_what_its_collective_promises(name, p, times):
    states, _ = play(name, p, times * p)
    promised = holdings(name.split(",")[0], p, times * p)[1]
    for have, want in zip(states[-1], promised, strict=True):
        assert [h for h, w in zip(have, want, strict=True) if w] == [w for w in want if w]


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "all_to_all" not in name])
def test_algorithms_take_lengths_that_p_does_not_divide(name):
    states, _ = play(name, 4, 6)
    promised = holdings(name.split(",")[0], 4, 6)[1]
    wanted = [(r, e) for r in range(4) for e in range(6) if promised[r][e]]
    assert [states[-1][r][e] for r, e in wanted] == [promised[r][e] for r, e in wanted]


def test_a_ring_that_drops_an_addition_does_not_end_with_the_sum(monkeypatch):
    rounds = ALGORITHMS["reduce_scatter, ring"]
    monkeypatch.setitem(ALGORITHMS, "reduce_scatter, ring", lambda p, n: rounds(p, n)[:-1])
    assert play("reduce_scatter, ring", 3)[0][-1][0][0] != Cell((0, 1, 2), 0)


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_numbers_of_rounds_follow_the_formulas(p):
    count = {name: len(play(name, p)[1]) for name, size in RUNS if size == p}
    log2 = (p - 1).bit_length()
    assert count["all_gather, ring"] == count["reduce_scatter, ring"] == p - 1
    assert count["all_reduce, ring"] == 2 * (p - 1)
    assert count["broadcast, tree"] == count["reduce, tree"] == log2
    assert count.get("all_reduce, halving and doubling", 2 * log2) == 2 * log2


def test_before_and_after_of_each_collective_on_two_ranks():
    own, gathered = [["a0", None], [None, "b1"]], [["a0", "b1"]] * 2
    full, total, root = [["a0", "a1"], ["b0", "b1"]], ["a0+b0", "a1+b1"], [["a0", "a1"], [None, None]]
    promised = {
        "broadcast": (root, [["a0", "a1"]] * 2), "scatter": (root, [["a0", None], [None, "a1"]]),
        "gather": (own, [["a0", "b1"], [None, None]]), "all_gather": (own, gathered),
        "reduce": (full, [total, [None, None]]), "all_reduce": (full, [total, total]),
        "reduce_scatter": (full, [["a0+b0", None], [None, "a1+b1"]]),
        "all_to_all": (full, [["a0", "b0"], ["a1", "b1"]]), "send_receive": (root, [["a0", "a1"]] * 2),
    }  # fmt: skip
    assert set(promised) == set(OPS)
    for op, (before, after) in promised.items():
        held = holdings(op, 2)
        assert ([texts(row) for row in held[0]], [texts(row) for row in held[1]]) == (before, after), op


def test_a_root_other_than_rank_0_is_where_the_array_is():
    before, after = holdings("gather", 3, root=2)
    assert texts(after[2]) == ["a0", "b1", "c2"] and after[0] == [None] * 3 == after[1]


def test_the_event_list_gives_the_rounds_of_a_ring_exactly():
    assert steps(log_of("all_gather, ring", 3, 6)) == [
        Message(0, 0, 1, 0, 2, 8, 0), Message(0, 1, 2, 2, 2, 8, 2), Message(0, 2, 0, 4, 2, 8, 4),
        Message(1, 0, 1, 4, 2, 8, 4), Message(1, 1, 2, 0, 2, 8, 0), Message(1, 2, 0, 2, 2, 8, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "p"), RUNS)
def test_drawn_rounds_are_those_the_ledger_counts(name, p):
    logs = log_of(name, p, 2 * p)
    assert 1 + max(message.step for message in steps(logs)) == merge(logs).steps == len(play(name, p)[1])


def test_the_kth_send_belongs_to_the_kth_receive():
    sends = [event(0, "send", k, k + 0.5, peer=1, offset=k, numel=1, seq=k + 1) for k in range(3)]
    receives = [event(1, "recv", k, k + 0.5, peer=0, offset=7 - k, numel=1, seq=k + 1) for k in range(3)]
    assert [(m.first, m.lands) for m in steps([Log(sends), Log(receives)])] == [(0, 7), (1, 6), (2, 5)]


def test_messages_of_two_groups_over_the_same_ranks_are_not_mixed():
    first = event(0, "send", 0, 1, peer=1, offset=0), event(1, "recv", 0, 3, peer=0, offset=10)
    other = {"group": (0, 1), "copy": 2}
    second = event(0, "send", 2, 3, peer=1, offset=5, **other), event(1, "recv", -1, 3, peer=0, offset=20, **other)
    logs = [Log([first[0], second[0]]), Log([second[1], first[1]])]
    assert sorted((m.first, m.lands) for m in steps(logs)) == [(0, 10), (5, 20)]


def test_a_send_that_waited_for_a_receive_comes_a_round_later():
    chain = [
        Log([event(0, "send", 0, 1, peer=1)]),
        Log([event(1, "recv", 0, 1, peer=0), event(1, "send", 2, 3, peer=2, group=(1, 2))]),
        Log([event(2, "recv", 0, 3, peer=1, group=(1, 2))]),
    ]
    assert [(m.step, m.src, m.dst) for m in steps(chain)] == [(0, 0, 1), (1, 1, 2)]
    chain[1].events[0].end_s = chain[1].events[0].waited_s = 2.5
    assert [(m.step, m.src, m.dst) for m in steps(chain)] == [(0, 0, 1), (0, 1, 2)]


def test_a_send_without_a_receive_is_kept_and_said():
    logs = [Log([event(0, "send", 0, None, peer=1)]), Log([event(1, "recv", 0, None, peer=2, group=(1, 2))])]
    assert steps(logs) == [Message(0, 0, 1, 0, 4, 16, None)]
    assert unmatched(logs) == (1, 1)


def test_ranks_that_wait_for_each_other_are_drawn_and_do_not_hang():
    one, two = {"copy": 1}, {"copy": 2}
    logs = [
        Log([event(0, "all_reduce", 0, None, **one), event(0, "all_reduce", 1, None, **two)]),
        Log([event(1, "all_reduce", 0.5, None, **two), event(1, "all_reduce", 2, None, **one)]),
    ]
    assert [band.step for band in bands(logs)] == [0, 1]


def test_receives_into_a_buffer_of_their_own_are_drawn_at_the_senders_place():
    buffer = [Message(0, 0, 1, 2, 2, 8, 0), Message(1, 1, 0, 4, 2, 8, 4)]
    assert [m.lands for m in placed(buffer)] == [2, 4]
    moved = [Message(0, 0, 1, 2, 2, 8, 0), Message(0, 1, 0, 0, 2, 8, 2)]
    assert placed(moved) == moved


def test_bands_name_each_members_operation_elements_and_bytes():
    logs = collectives("all_reduce", [(0, 1), (2, 3)], "tp", calls=2)
    found = bands(logs)
    assert [(band.step, band.axis, band.group) for band in found] == [
        (0, "tp", (0, 1)), (0, "tp", (2, 3)), (1, "tp", (0, 1)), (1, "tp", (2, 3)),
    ]  # fmt: skip
    assert found[1].members == ((2, "all_reduce", 4, 24), (3, "all_reduce", 4, 24))
    logs[3].events[0] = replace(logs[3].events[0], op="broadcast")
    assert [member.op for member in bands(logs)[1].members] == ["all_reduce", "broadcast"]


def test_values_come_from_the_rank_that_held_them_or_from_all():
    before = [[0, 1], [10, 11]]
    assert origins(before, [[11, 0]]) == [[(1,), (0,)]]
    assert origins(before, [[10.0, 12.0]]) == [[(1,), (0, 1)]]
    assert origins(before, [[5.0, 6.0, 7.0]]) == [[(0, 1), (0, 1), ()]]
    assert origins([[1], [1]], [[1]]) == [[()]]


def test_values_flatten_what_ranks_hold():
    assert values([[1, 2], [3, 4]]) == [1, 2, 3, 4] and values(5) == [5]


def test_computation_is_the_time_between_calls():
    calls = [event(0, "all_reduce", 1.0, 1.5), event(0, "all_reduce", 2.0, 2.25), event(1, "all_reduce", 1.0, 1.5)]
    lanes = intervals(Log(calls))
    assert lanes[0].compute == lanes[0].free == [Interval(500.0, 1000.0, "")]
    assert lanes[0].communication == [Interval(0.0, 500.0, "all_reduce"), Interval(1000.0, 1250.0, "all_reduce")]
    assert lanes[1].compute == []


def test_a_rank_is_free_while_an_asynchronous_call_is_under_way():
    calls = [event(0, "all_reduce", 0, 4, is_async=True), event(0, "barrier", 1, 2)]
    lane = intervals(Log(calls))[0]
    assert lane.compute == [] and lane.free == [Interval(0, 1000, ""), Interval(2000, 4000, "")]


def test_a_call_that_never_ended_lasts_to_the_end():
    lane = intervals(Log([event(0, "barrier", 0, 1), event(0, "barrier", 1, None)]))[0]
    assert lane.communication[1].end_ms >= 1000 and not lane.communication[1].finished


def test_calls_that_overlap_are_one_heap():
    a, b, c = Interval(0, 2, "send"), Interval(1, 3, "recv"), Interval(3, 4, "send")
    assert together([c, a, b]) == [[a, b], [c]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: steps(Log()), "0 events.*with ledger"),
        (lambda: steps([Log(), Log()]), "2 logs hold 0 events"),
        (lambda: holdings("allreduce", 4), "'allreduce'.*all_reduce"),
        (lambda: holdings("all_to_all", 4, 6), "n = 6 elements on p = 4.*multiple of 4"),
        (lambda: holdings("reduce", 4, root=4), "p = 4 ranks, n = 4 elements, root = 4"),
        (lambda: play("all_reduce, halving and doubling", 3), "p = 3 is not a power of 2, choose 2, 4 or 8"),
        (lambda: play("all_reduce, star", 3), "'all_reduce, star'.*all_reduce, ring"),
    ],
)
def test_bad_data_is_answered_with_the_numbers_and_the_fix(call, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        call()
