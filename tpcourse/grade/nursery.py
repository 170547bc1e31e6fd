"""The nursery: a process that imported torch and nbval once, and forks a warden for each run of a submission.

It ends with the grader. It has one thread, no settings of the user's, and no more environment than `CLEAN` names.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tpcourse
from tpcourse.grade import system, witness

CLEAN = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TPCOURSE_BACKEND", "TPCOURSE_CAGE")
LATER = (
    "torch._dynamo",
    "nbval.plugin",
    "nbclient",
    "tpcourse.nbval_plugin",
    "tpcourse.grade.plugin",
    "tpcourse.grade.warden",
    "tpcourse.grade.calculations",
)
NOT_IN_RANKS = ("__main__", "authoring", "cli", "draw", "grade", "nbval_plugin")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Nursery:
    """The grader's end: `task` starts a run and returns the socket on which its report will come."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        root = str(Path(__file__).parents[2])
        env = {name: os.environ[name] for name in CLEAN if name in os.environ}
        env |= (
            dict.fromkeys(THREADS, "1")
            | witness.ENVIRONMENT
            | {
                "PYTHONPATH": root,
                "PYTHONNOUSERSITE": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
        )
        command = [sys.executable, "-c", "from tpcourse.grade.nursery import serve; serve()"]
        self.process = subprocess.Popen(
            command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=env, cwd="/", start_new_session=True
        )
        theirs.close()

    def task(self, task: dict[str, Any]) -> socket.socket:
        """Start a run; closing the socket ends it."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"t"], [theirs.fileno()])
        ours.sendall(json.dumps(task).encode() + b"\n")
        return ours

    def close(self) -> None:
        """End it with all that it forked."""
        self.control.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()


@contextmanager
def nursery() -> Iterator[Nursery]:
    """A nursery for the time of the block."""
    made = Nursery()
    try:
        yield made
    finally:
        made.close()


def serve() -> None:
    """What the nursery's process does: import, then fork for each task, until the grader is gone."""
    system.end_with_parent()
    os.setpgid(0, 0) if os.getpgrp() != os.getpid() else None
    from tpcourse.ranks import server

    sys.modules["debugpy"] = None  # type: ignore[assignment]
    for name in (*server.PRELOAD, *server.LATER, *LATER, *_course()):
        importlib.import_module(name)
    del sys.modules["debugpy"]
    gc.collect()
    gc.freeze()  # else each child's collector writes to all that it shares with the others
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    while os.getppid() != 1:
        _reap()
        if select.select([control], [], [], 0.2)[0]:
            message, handles, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                _child(control, handles[0])
            os.close(handles[0])


def _course() -> list[str]:
    """All modules that a rank may import: later ones would be new to whoever looks for what an answer slipped in."""
    found = pkgutil.walk_packages(tpcourse.__path__, "tpcourse.", onerror=lambda name: None)
    return [module.name for module in found if module.name.split(".")[1] not in NOT_IN_RANKS]


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _child(control: socket.socket, handle: int) -> None:
    status = 1
    try:
        control.close()
        system.end_with_parent()
        from tpcourse.grade.warden import work

        work(socket.socket(fileno=handle))
        status = 0
    finally:
        os._exit(status)
