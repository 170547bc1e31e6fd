"""`tpcourse doctor --room`: real people at small N, and every limit in words."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from tpcourse.cli import main
from tpcourse.cli.doctor import room
from tpcourse.cli.doctor.room import Need, Room, steps, told


def test_people_come_in_steps_that_double():
    assert [steps(number) for number in (1, 2, 3, 8, 30)] == [
        [1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 16, 30]
    ]  # fmt: skip


def test_a_small_room_is_filled_and_emptied_and_nothing_is_left(capsys, monkeypatch):
    rooms = []
    close = Room.close

    def closing(filled):
        rooms.extend((person.process, [child.pid for child in person.tree()]) for person in filled.people)
        return close(filled)

    monkeypatch.setattr(Room, "close", closing)
    assert main(["doctor", "--room", "2", "--json"]) == 0
    told_here = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert "2 of 2 people, " in told_here["room"]["text"] and "when all press at once" in told_here["room"]["text"]
    assert "first limit" in told_here and told_here["left behind"]["text"] == "nothing"
    assert len(rooms) == 2
    assert not any(psutil.pid_exists(pid) for _, pids in rooms for pid in pids[1:])
    assert all(process.poll() is not None for process, _ in rooms)
    assert min(len(pids) for _, pids in rooms) >= 6, "a person, a fork server, a controller and ranks"


def with_people(tmp_path, waits, **more):
    filled = Room(tmp_path, time.monotonic() + 60, waits=waits, ranks="4 ranks on gloo", start_s=3.2, **more)
    filled.people = [None] * max(waits, default=0)
    return filled


def words(filled, number, capacity=None, left=0):
    return {f.what: (f.level, f.text) for f in told(filled, number, capacity or {}, left)}


def test_a_room_that_fits_is_told_with_waiting_times_and_the_limit_that_would_come_first(tmp_path):
    said = words(with_people(tmp_path, {1: (0.3, 0.3), 30: (4.0, 6.5)}), 30, {"memory (0.40 GiB a person)": 52})
    assert said["room"] == (
        "ok",
        "30 of 30 people, 4 ranks on gloo each; the last to come waited 3 s for their ranks;\n"
        "a cell takes 0.3 s alone, 4.0 s when all press at once (the slowest 6.5 s)",
    )
    assert said["first limit"] == ("ok", "not met; it would be memory (0.40 GiB a person), at about 52 people")


def test_a_limit_that_was_met_is_told_with_how_many_were_carried(tmp_path):
    said = words(with_people(tmp_path, {1: (0.3, 0.3), 8: (1.0, 2.0)}, limit="memory, at about 12 people"), 30)
    assert said["room"][0] == "warn" and said["room"][1].startswith("8 of 30 people")
    assert said["first limit"] == ("warn", "met: memory, at about 12 people")


def test_where_the_time_was_over_the_next_limit_is_told_too(tmp_path):
    filled = with_people(tmp_path, {1: (0.3, 0.3), 8: (1.0, 2.0)}, limit="time: of 16 people 1 of 8 had started")
    said = words(filled, 30, {"memory (0.40 GiB a person)": 52})
    assert said["first limit"][1].endswith("With more time it would be memory (0.40 GiB a person), at about 52 people")


def test_a_room_of_nobody_and_processes_left_behind_fail(tmp_path):
    said = words(with_people(tmp_path, {}, limit="an error with 1 people: no space"), 30, left=2)
    assert said["room"][0] == said["left behind"][0] == "fail"
    assert "no space" in said["first limit"][1]


@pytest.mark.parametrize(
    ("free", "threads", "first"),
    [(3 * room.GIB, 10_000, "memory (0.50 GiB a person), at about 5"), (99 * room.GIB, 70, "processes (20 threads")],
)
def test_the_next_step_is_reckoned_before_anybody_comes(tmp_path, monkeypatch, free, threads, first):
    monkeypatch.setattr(room.machine, "memory_bytes", lambda: (free, 200 * room.GIB))
    monkeypatch.setattr(room, "threads_left", lambda: threads)
    filled = with_people(tmp_path, {1: (0.3, 0.3)}, need=Need(0.5 * room.GIB, 20))
    assert not filled.grow(30)
    assert filled.limit.startswith(first)
    assert len(filled.people) == 1, "nobody came"


def test_a_cell_that_is_no_lesson_any_more_and_a_time_that_is_over_are_limits(tmp_path):
    filled = with_people(tmp_path, {1: (0.3, 0.3)})
    assert not filled.good([{"seconds": 1.0}, {}], 2, "started")
    assert filled.limit == "time: of 2 people 1 of 2 had started when 150 s were over"
    filled = with_people(tmp_path, {1: (0.3, 0.3)})
    assert not filled.good([{"error": "RuntimeError: GPU 0 is full"}], 2, "started")
    assert "GPU 0 is full" in filled.limit


def test_a_room_without_people_is_refused(capsys):
    assert main(["doctor", "--room", "0"]) == 1
    assert "--room 0 is no room" in capsys.readouterr().err


def test_threads_left_are_counted_where_the_system_tells_them():
    assert Path("/proc").is_dir() is False or room.threads_left() > 0
