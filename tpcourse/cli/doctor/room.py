"""`tpcourse doctor --room N`: starts N people's ranks, step by step, and says how many this machine carries.

Everybody is a process with a fork server and ranks of their own, as in a room; in each step all run a lesson-01 cell at
the same moment, which is the worst case. Before a step its memory and processes are reckoned from the people there are.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tpcourse.cli import machine
from tpcourse.cli.bench.fresh import progress
from tpcourse.cli.doctor.finding import Finding

GIB = 2**30
KEPT_BYTES = 1 * GIB  # left to the system
KEPT_THREADS = 200
WAIT_LIMIT_S = 10.0  # a cell that takes longer is no lesson
LIMIT_S = 150.0  # of the whole room
END_S = 10.0


class Person:
    """One person's process; it ends, with all that it started, when our end of its input closes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        env = os.environ | {"TMPDIR": str(folder)}  # a cap on ranks counts each person alone
        words = [sys.executable, "-m", "tpcourse.cli.doctor.person"]
        self.process = subprocess.Popen(
            words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def go(self) -> None:
        """Press the button."""
        if self.process.stdin:
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()

    def tree(self) -> list[Any]:
        """The person's processes."""
        import psutil

        with suppress(psutil.Error):
            person = psutil.Process(self.process.pid)
            return [person, *person.children(recursive=True)]
        return []


@dataclass
class Need:
    """What one person takes: bytes (pages that are shared count in part) and threads, which the system counts."""

    num_bytes: float = 0.0
    threads: int = 0

    @classmethod
    def of(cls, people: list[Person]) -> Need:
        import psutil

        num_bytes, threads = 0.0, 0
        for process in (process for person in people for process in person.tree()):
            with suppress(psutil.Error, AttributeError):
                threads += process.num_threads()
                full = process.memory_full_info()
                num_bytes += getattr(full, "pss", full.uss)
        return cls(num_bytes / len(people), round(threads / len(people)))


@dataclass
class Room:
    """The people so far, how long they waited, and the first limit that was met."""

    folder: Path
    end_s: float
    people: list[Person] = field(default_factory=list)
    waits: dict[int, tuple[float, float]] = field(default_factory=dict)
    start_s: float = 0.0
    need: Need = field(default_factory=Need)
    limit: str = ""
    ranks: str = ""

    def grow(self, number: int) -> bool:
        """Let people come until there are `number`; False if a limit was met."""
        if self.people and (why := self.too_many(number)):
            self.limit = why
            return False
        before = len(self.people)
        for index in range(before, number):
            self.people.append(Person(self.folder / str(index)))
        answers = self.answers(self.people[before:])
        if not self.good(answers, number, "started"):
            return False
        self.start_s = max(answer["seconds"] for answer in answers)
        self.ranks = f"{answers[0]['ranks']} ranks on {answers[0]['backend']}"
        return self.press(number)

    def press(self, number: int) -> bool:
        """All run the cell at once."""
        for person in self.people:
            person.go()
        answers = self.answers(self.people)
        if not self.good(answers, number, "finished the cell"):
            return False
        seconds = [answer["seconds"] for answer in answers]
        self.waits[number] = (median(seconds), max(seconds))
        self.need = Need.of(self.people)
        progress(f"room: {number} people, {self.waits[number][0]:.1f} s for a cell, the slowest {max(seconds):.1f} s")
        if max(seconds) > WAIT_LIMIT_S:
            self.limit = f"waiting: with {number} people at once the slowest cell took {max(seconds):.0f} s"
        return not self.limit

    def good(self, answers: list[dict[str, Any]], number: int, what: str) -> bool:
        """Whether everybody answered without an error; otherwise the limit says what happened."""
        errors = [answer["error"] for answer in answers if "error" in answer]
        if errors:
            self.limit = f"an error with {number} people: {errors[0]}"
        elif None in [answer.get("seconds") for answer in answers]:
            done = sum("seconds" in answer for answer in answers)
            self.limit = f"time: of {number} people {done} of {len(answers)} had {what} when {LIMIT_S:.0f} s were over"
        return not self.limit

    def answers(self, people: list[Person]) -> list[dict[str, Any]]:
        """One line of each person; an empty one for those that have not answered at the end of the time."""
        found: dict[Person, dict[str, Any]] = {}
        with selectors.DefaultSelector() as selector:
            for person in people:
                selector.register(person.process.stdout, selectors.EVENT_READ, person)  # type: ignore[arg-type]
            while len(found) < len(people) and time.monotonic() < self.end_s:
                for key, _ in selector.select(0.2):
                    line = key.data.process.stdout.readline()
                    found[key.data] = json.loads(line) if line else {"error": "a person's process ended"}
                    selector.unregister(key.fileobj)
        return [found.get(person, {}) for person in people]

    def too_many(self, number: int) -> str | None:
        """Why so many people would not fit, by memory and processes."""
        for what, most in self.capacity().items():
            if number > most:
                return f"{what}, at about {most} people"
        return None

    def capacity(self) -> dict[str, int]:
        """Limit -> how many people fit into it, those that are here included; the tightest first."""
        free, _ = machine.memory_bytes()
        more = {
            f"memory ({self.need.num_bytes / GIB:.2f} GiB a person)": (free - KEPT_BYTES) / max(self.need.num_bytes, 1),
            f"processes ({self.need.threads} threads a person)": threads_left() / max(self.need.threads, 1),
        }
        most = {what: len(self.people) + max(0, int(number)) for what, number in more.items()}
        return dict(sorted(most.items(), key=lambda item: item[1]))

    def close(self) -> int:
        """Everybody goes home; returns how many processes of theirs are left, which is none."""
        import psutil

        trees = [process for person in self.people for process in person.tree()]
        for person in self.people:
            if person.process.stdin:
                with suppress(OSError):
                    person.process.stdin.close()
        _, late = psutil.wait_procs(trees, timeout=END_S)
        for process in late:  # by id, and only if it still is that process
            with suppress(psutil.Error):
                process.kill()
        _, left = psutil.wait_procs(late, timeout=END_S)
        return len(left)


def threads_left() -> float:
    """Threads that may still be started: of this user, of its container, of the system."""
    used = sum(1 for _ in Path("/proc").glob("[0-9]*/task/[0-9]*"))
    limits = [float("inf")]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.getuid() != 0:
        limits.append(soft - used)
    for file in ("/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max", "/sys/fs/cgroup/pids.max"):
        text = Path(file).read_text().strip() if Path(file).is_file() else ""
        limits += [float(text) - used] if text.isdigit() else []
    return min(limits) - KEPT_THREADS


def steps(number: int) -> list[int]:
    """1, 2, 4, ... and `number`."""
    doubled = [2**power for power in range(number.bit_length()) if 2**power < number]
    return [*doubled, number]


def room(number: int, limit_s: float = LIMIT_S) -> Iterator[Finding]:
    """Fill the room, and say what it carried, at what waiting time, and what its first limit is."""
    with tempfile.TemporaryDirectory(prefix="tpcourse-room-", ignore_cleanup_errors=True) as folder:
        filled = Room(Path(folder), time.monotonic() + limit_s)
        try:
            for step in steps(number):
                if not filled.grow(step):
                    break
            capacity = filled.capacity()
        finally:
            left = filled.close()
    yield from told(filled, number, capacity, left)


def told(filled: Room, number: int, capacity: dict[str, int], left: int) -> Iterator[Finding]:
    """The room in words."""
    carried = max(filled.waits, default=0)
    if carried:
        alone, (usual, slowest) = filled.waits[1][0], filled.waits[carried]
        wait = f"a cell takes {alone:.1f} s alone, {usual:.1f} s when all press at once (the slowest {slowest:.1f} s)"
        each = f"{filled.ranks} each; the last to come waited {filled.start_s:.0f} s for their ranks"
        level = "ok" if carried >= number and not filled.limit else "warn"
        people = "person" if carried == 1 else "people"
        yield Finding(level, "room", f"{carried} of {number} {people}, {each};\n{wait}")  # type: ignore[arg-type]
    else:
        yield Finding("fail", "room", "not even one person's ranks ran the cell")
    would = next((f"{what}, at about {most} people" for what, most in capacity.items()), "")
    first, met = filled.limit or would, "met" if filled.limit else "not met; it would be"
    if first.startswith("time") and carried:  # says little of the machine when it is quiet
        first += f".\nWith more time it would be {would}"
    yield Finding("warn" if filled.limit else "ok", "first limit", f"{met}: {first}".replace("be: ", "be "))
    yield Finding("fail" if left else "ok", "left behind", f"{left} processes" if left else "nothing")
