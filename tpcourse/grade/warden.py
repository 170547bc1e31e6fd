"""The warden of one run: starts judge and pen, watches time and memory, hands in the notes, leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpcourse.grade import cage, system
from tpcourse.grade.cage import Limits

LOOK_S = 0.25


@dataclass
class Task:
    """A run: the rebuilt notebook as text, its private folder, what neither side may see, what the pen may not."""

    private: str
    notebook: str
    salt: str
    kept: list[str]
    hidden: list[str]
    secret: list[str]
    limits: dict[str, Any] = field(default_factory=dict)

    @property
    def judge(self) -> Path:
        return Path(self.private, "judge")

    @property
    def box(self) -> Path:
        return Path(self.private, "box")


def work(connection: socket.socket) -> None:
    """Read the task, enter the outer cage, and run it there."""
    with connection.makefile("rb") as reader:
        task = Task(**json.loads(reader.readline()))
    limits = Limits(**task.limits)
    private = Path(task.private)
    uid = cage.FIRST_UID + os.getpid() if os.getuid() == 0 else 0
    caged = cage.level() == cage.NAMESPACES
    if caged:
        cage.outer(private, limits, [Path(p) for p in task.hidden], [Path(p) for p in task.kept])
    else:
        uid = uid if uid and _can_read(uid, task.kept) else 0
    prepare = [cage.first_process] if caged else [system.end_with_parent]
    pid = cage.start(lambda: Warden(task, limits, uid, caged).run(connection), *prepare)
    connection.close()
    os.waitpid(pid, 0)


def _can_read(uid: int, paths: list[str]) -> bool:
    """Whether a user that owns nothing can enter these folders."""

    def look() -> None:
        cage.become_nobody(uid)
        os._exit(0 if all(os.access(path, os.R_OK | os.X_OK) for path in paths) else 1)

    return os.waitpid(cage.start(look), 0)[1] == 0


class Warden:
    """The first process of the outer cage."""

    def __init__(self, task: Task, limits: Limits, uid: int, caged: bool) -> None:
        self.task, self.limits, self.uid, self.caged = task, limits, uid, caged
        self.peak_bytes = 0

    def run(self, connection: socket.socket) -> None:
        """Both sides, until the judge has ended or a limit is reached; then the report."""
        system.adopt_orphans()
        tempfile.tempdir = None  # the nursery's is not there in a cage
        os.setsid() if os.getpgrp() != os.getpid() else None
        self._folders()
        begin_s = time.monotonic()
        pen = cage.start(self._pen)
        judge = cage.start(self._judge, connection.close)
        ended = self._watch(connection, judge, begin_s + self.limits.total_s)
        report = {
            "ended": ended,
            "seconds": time.monotonic() - begin_s,
            "peak_bytes": self.peak_bytes,
            "isolation": self._isolation(),
            **self._notes(),
        }
        with suppress(OSError):
            connection.sendall(json.dumps(report, ensure_ascii=False).encode("utf-8", "replace"))
        connection.close()
        self._end({pen, judge})

    def _folders(self) -> None:
        """The judge's folder and the box, both the property of the user that they run as."""
        for name in ("judge/work", "judge/tmp", "judge/ipython/profile_default/startup", "box/home"):
            Path(self.task.private, name).mkdir(parents=True, exist_ok=True)
        startup = self.task.judge / "ipython/profile_default/startup/00-guard.py"
        startup.write_text("from tpcourse.grade import guard\nguard.install()\n")
        (self.task.judge / "work" / "graded.ipynb").write_text(self.task.notebook, "utf-8")
        if self.uid:
            for folder, names, files in os.walk(self.task.private):
                for name in (".", *names, *files):
                    os.chown(os.path.join(folder, name), self.uid, self.uid, follow_symlinks=False)

    def _limit(self) -> None:
        one = self.limits
        system.limit(one.process_bytes, one.num_processes if self.caged or self.uid else 1 << 20, one.file_bytes)

    def _pen(self) -> None:
        """Enter the inner cage and serve ranks from there."""
        os.setpgid(0, 0)
        if self.caged:
            cage.inner(self.task.box, [Path(p) for p in self.task.secret], [Path(p) for p in self.task.kept])
            os.waitpid(cage.start(self._serve, cage.first_process), 0)
        else:
            self._serve()

    def _serve(self) -> None:
        from tpcourse.ranks.server import Server

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.chdir(self.task.box)
        _silence(os.devnull)
        self._limit()
        cage.become_nobody(self.uid)
        server = Server(str(self.task.box / "server"), owner_fd=None)
        server.to_import.clear()  # the nursery has
        server.serve()

    def _judge(self) -> None:
        from tpcourse.grade.judge import judge

        os.setpgid(0, 0)
        _silence(str(self.task.judge / "log"))
        self._limit()
        if self.uid or self.caged:
            cage.become_nobody(self.uid)
        judge(self.task.judge, self.task.box, self.task.salt, self.limits)

    def _watch(self, connection: socket.socket, judge: int, deadline_s: float) -> str:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == judge:
                return "done" if os.waitstatus_to_exitcode(status) in (0, 1) else "crashed"
            if pid:
                continue
            if time.monotonic() > deadline_s:
                return "time"
            self.peak_bytes = max(self.peak_bytes, used := self._used_bytes())
            if used > self.limits.all_bytes:
                return "memory"
            if not self.caged and _folder_bytes(Path(self.task.private)) > self.limits.disk_bytes:
                return "files"
            if select.select([connection], [], [], LOOK_S)[0]:
                return "cancelled"

    def _used_bytes(self) -> int:
        """Memory of all processes of this run; what forked processes share is counted once, where it matters."""
        import psutil

        processes = list(psutil.process_iter() if self.caged else psutil.Process().children(recursive=True))
        quick = sum(map(_own_bytes, processes))
        if quick < self.limits.all_bytes:
            return quick
        return sum(_fair_bytes(process.pid) for process in processes)

    def _notes(self) -> dict[str, Any]:
        """What plugin and guard wrote down, and the end of pytest's own log."""
        notes: dict[str, Any] = {"cells": [], "verdicts": []}
        for name, found in notes.items():
            with suppress(OSError):
                lines = (self.task.judge / f"{name}.jsonl").read_text("utf-8", errors="replace").splitlines()
                for line in lines:
                    with suppress(ValueError):  # the last one, if the judge was killed as it wrote
                        found.append(json.loads(line))
        with suppress(OSError):
            notes["log"] = (self.task.judge / "log").read_text("utf-8", errors="replace")[-4000:]
        return notes

    def _isolation(self) -> dict[str, Any]:
        return {"level": cage.NAMESPACES if self.caged else cage.LIMITS, "other user": bool(self.uid)}

    def _end(self, started: set[int]) -> None:
        """Kill what is left; in a cage of namespaces the kernel does it when this process ends."""
        if self.caged:
            return
        import psutil

        for _ in range(20):  # whatever forks while it is killed is met in the next round
            left = psutil.Process().children(recursive=True)
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not left:
                break
            time.sleep(0.05)
        for name in ("judge", "box"):
            shutil.rmtree(Path(self.task.private, name), ignore_errors=True)


def _silence(path: str) -> None:
    """Standard streams to a file."""
    sys.stdout.flush()
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(handle, stream)


def _own_bytes(process: Any) -> int:
    """What a process holds beside files: too much, if it shares it with its parent."""
    import psutil

    try:
        memory = process.memory_info()
        return memory.rss - getattr(memory, "shared", 0)
    except (psutil.Error, OSError):
        return 0


def _fair_bytes(pid: int) -> int:
    """A process's share of what it holds; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, StopIteration):
        return 0


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total
