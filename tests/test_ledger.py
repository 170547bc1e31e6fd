"""The ledger's parts that need no ranks: formulas, tables, steps, places, the board."""

from __future__ import annotations

import ast
import os
import pickle
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import tpcourse.ledger
from tpcourse.ledger import Event, Log, board_waiting, merge, read_board, traffic
from tpcourse.ledger.board import SLOT_BYTES, SLOTS, Board
from tpcourse.ledger.groups import axis_of
from tpcourse.ledger.place import OURS, Places


def event(rank=0, seq=1, op="all_reduce", **changes):
    """An event of two ranks with plain values."""
    plain = Event(
        rank, seq, op, axis="tp", group=(0, 1), peer=None, shape=(4, 3), dtype="float32", numel=12, offset=0,
        splits=None, reduction="sum", bytes_sent=48, bytes_received=48, is_async=False, begin_s=1.0,
        end_s=2.0, line="line 3", function="step",
    )
    return replace(plain, **changes)


def message(op, rank, peer, seq=1, at=0.0):
    return event(rank, seq, op, peer=peer, begin_s=at, end_s=at + 0.5, group=(0, 1, 2))


@pytest.mark.parametrize(
    ("moved", "expected"),
    [
        (traffic.all_reduce(40, 4), (60, 60)),
        (traffic.all_reduce(20, 3), (27, 27)),          # 26 2/3, rounded up
        (traffic.all_reduce(20, 1), (0, 0)),
        (traffic.all_gather(40, 4, 10), (30, 30)),
        (traffic.all_gather(40, 4, 4), (30, 36)),       # a short piece of its own
        (traffic.reduce_scatter(40, 4), (30, 30)),
        (traffic.all_to_all(40, 8, 60, 20), (32, 40)),
        (traffic.broadcast(40, 4, True), (40, 0)),
        (traffic.broadcast(40, 4, False), (0, 40)),
        (traffic.broadcast(40, 1, True), (0, 0)),
        (traffic.reduce(40, 4, True), (0, 40)),
        (traffic.reduce(40, 4, False), (40, 0)),
        (traffic.scatter(40, 10, True), (30, 0)),
        (traffic.scatter(40, 10, False), (0, 10)),
        (traffic.gather(40, 10, True), (0, 30)),
        (traffic.gather(40, 10, False), (10, 0)),
        (traffic.barrier(), (0, 0)),
        (traffic.send(40), (40, 0)),
        (traffic.receive(40), (0, 40)),
    ],
)
def test_bytes_follow_the_formulas(moved, expected):
    assert moved == expected


def test_the_table_is_the_same_text_every_time_and_holds_no_times():
    log = Log([event(), event(seq=2, op="barrier", shape=(), dtype="", numel=0, bytes_sent=0),
               message("send", 0, 1), message("recv", 0, 2)])
    assert log.table() == (
        "seq  op          axis  shape   dtype    bytes  peer    line\n"
        "1    all_reduce  tp    [4, 3]  float32  48     -       line 3\n"
        "2    barrier     tp    -       -        0      -       line 3\n"
        "1    send        tp    [4, 3]  float32  48     to 1    line 3\n"
        "1    recv        tp    [4, 3]  float32  48     from 2  line 3"
    )
    assert str(log) == log.table()


def test_a_long_table_is_cut_in_the_middle_and_says_so():
    rows = Log([event(seq=seq) for seq in range(1, 1001)]).table(max_rows=5).splitlines()
    assert [row.split()[0] for row in rows] == ["seq", "1", "2", "...", "998", "999", "1000"]
    assert rows[3] == "... 995 more calls, not shown ..."


def test_a_merged_log_is_ordered_by_rank_and_counts_the_busiest_rank():
    log = merge([Log([event(1), event(1, 2, bytes_sent=8)]), Log([event(0)])])
    assert [(e.rank, e.seq) for e in log.events] == [(0, 1), (1, 1), (1, 2)]
    assert (log.num_calls, log.bytes_sent, log.total_bytes_sent) == (2, 56, 104)
    assert log.count("all_reduce") == 2
    assert log.count("all_reduce", axis="dp") == 0
    assert [e.seq for e in log.rank(1).events] == [1, 2]
    assert log.table().splitlines()[1].split()[:3] == ["0", "1", "all_reduce"]
    assert repr(log) == "Log of 2 ranks: 3 calls, 104 bytes sent"


def test_an_empty_log_has_a_table_and_zeros():
    log = merge([])
    assert (log.num_calls, log.bytes_sent, log.steps, len(log)) == (0, 0, 0, 0)
    assert log.table().startswith("seq  op")


def test_logs_and_events_survive_pickling_without_what_polls_them():
    log = pickle.loads(pickle.dumps(Log([event()], poll=lambda: None)))
    assert log.events == [event()]
    assert asdict(log.events[0])["function"] == "step"


def test_steps_follow_a_chain_over_ranks_and_not_independent_messages():
    send, relay, last = message("send", 0, 1), message("send", 1, 2, at=1.0), message("recv", 2, 1)
    assert Log([send, message("recv", 1, 0), relay, last]).steps == 2
    independent = [send, message("recv", 1, 0, at=2.0), relay, last]
    assert Log(independent).steps == 1      # rank 1 sent before it had waited for its receive
    assert Log([event()]).steps == 0


@pytest.mark.parametrize(
    ("description", "axis"),
    [("default_pg", "world"), ("mesh_default", "world"), ("mesh_tp", "tp"), ("tp", "tp"),
     ("mesh_dp_cp", "dp_cp"), ("undefined", "group 0,2"), ("", "group 0,2"),
     ("default_pg:split:1", "group 0,2")],
)
def test_the_axis_is_read_from_torchs_description(description, axis):
    assert axis_of(description, (0, 2)) == axis


def _frame_of(source, filename):
    """The frame in which a program asks for it."""
    names = {"sys": sys}
    exec(compile(source, filename, "exec"), names)
    return names["frame"]


def test_a_line_is_named_by_its_cell_unless_that_is_the_current_one():
    places = Places()
    places.register_cell("cell-a", 7)
    frame = _frame_of("\n\n\nframe = sys._getframe()", "cell-a")
    assert places.place(frame) == f"line {frame.f_lineno}"
    places.register_cell("cell-b", 8, shift=1)
    assert places.place(frame) == f"line {frame.f_lineno} of cell 7"
    assert places.place(_frame_of("frame = sys._getframe()", "cell-b")) == "line 2"
    assert places.place(sys._getframe()).endswith("of test_ledger.py")


def test_the_innermost_cell_is_found_below_files_that_are_not_the_learners():
    places = Places()
    places.register_cell("cell-a", 1)
    names = {"origin": lambda: places.origin(sys._getframe())}
    exec(compile("\ndef step():\n    return origin()\n\nfound = step()", "cell-a", "exec"), names)
    assert names["found"].line == "line 3"
    assert names["found"].function == "<lambda>"


def _from_the_course(places, source):
    """The origin of a call made in a file of the course that a cell called."""
    names = {"sys": sys}
    exec(compile(source, f"{OURS}wire/rings.py", "exec"), names)
    exec(compile("\nfound = ring_all_gather()", "cell-a", "exec"), names)
    return places.origin(names["found"])


def test_the_function_is_the_courses_and_the_line_is_the_cells():
    places = Places()
    places.register_cell("cell-a", 1)
    origin = _from_the_course(places, "def ring_all_gather():\n    return sys._getframe()")
    assert origin == ("line 2", "ring_all_gather", False, False)
    inside = _from_the_course(places, "def ring_all_gather():\n    return [sys._getframe() for _ in '1'][0]")
    assert inside.function == "ring_all_gather"


def test_the_board_keeps_the_last_64_calls_in_order_in_a_private_file(tmp_path):
    board = Board(tmp_path / "board")
    for seq in range(1, 101):
        number = board.write(event(seq=seq, end_s=None))
        if seq % 2:
            board.finish(number, float(seq))
    board.finish(1, 5.0)                    # a call whose slot went to another one
    events = read_board(tmp_path / "board")
    assert [e.seq for e in events] == list(range(101 - SLOTS, 101))
    assert [e.end_s for e in events] == [float(e.seq) if e.seq % 2 else None for e in events]
    assert stat.S_IMODE(os.stat(tmp_path / "board").st_mode) == 0o600
    assert events[0] == event(seq=37, end_s=37.0)


def test_the_board_tells_which_call_is_waited_in(tmp_path):
    board = Board(tmp_path / "board")
    numbers = [board.write(event(seq=seq, end_s=None), is_waited=True) for seq in (1, 2, 3)]
    board.finish(numbers[0], 2.0)
    board.waited(numbers[1], False)
    assert [e.seq for e in board_waiting(tmp_path / "board")] == [3]
    board.clear()
    board.waited(numbers[2], True)
    assert read_board(tmp_path / "board") == []


def test_a_half_written_slot_is_left_out(tmp_path):
    path = tmp_path / "board"
    board = Board(path)
    for seq in (1, 2, 3):
        board.write(event(seq=seq))
    data = bytearray(path.read_bytes())
    data[2 * SLOT_BYTES + 60] ^= 1
    path.write_bytes(data)
    assert [e.seq for e in read_board(path)] == [1, 3]
    path.write_bytes(data[: 3 * SLOT_BYTES + 40])
    assert [e.seq for e in read_board(path)] == [1]


def test_an_event_too_long_for_a_slot_is_cut_not_lost(tmp_path):
    board = Board(tmp_path / "board")
    board.write(event(group=tuple(range(1000)), splits=tuple(range(1000)), line="line 1 of " + "x" * 2000))
    (found,) = read_board(tmp_path / "board")
    assert found.group == tuple(range(16))
    assert found.seq == 1


def test_the_ledger_can_be_imported_and_read_without_torch():
    program = "import sys, tpcourse.ledger; sys.exit('torch' in sys.modules)"
    root = Path(tpcourse.ledger.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0


def test_everything_the_ledger_offers_exists():
    assert all(hasattr(tpcourse.ledger, name) for name in tpcourse.ledger.__all__)
    assert ast.parse(Path(tpcourse.ledger.__file__).read_text())
