"""What a forked child of the server turns into: an ipyparallel controller or engine, quiet and bound to its owner."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from typing import Any

LOG_LIMIT_BYTES = 8 << 20


def become(group: int, folder: str, cwd: str, env: dict[str, str], path: list[str]) -> None:
    """Join the session's process group, take the notebook's environment, folder and path, write to a private log."""
    os.setpgid(0, group)
    sys.path[:] = path
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    with suppress(OSError):
        os.chdir(cwd)
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(os.path.join(folder, f"{os.getpid()}.log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    threading.Thread(target=_end_with, args=(os.getppid(), log), daemon=True, name="owner").start()


def _end_with(owner: int, log: int) -> None:
    """End the whole group when the server is gone; keep the private log short."""
    while os.getppid() == owner:
        time.sleep(0.25)
        if os.fstat(log).st_size > LOG_LIMIT_BYTES:
            os.ftruncate(log, 0)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def controller(folder: str) -> None:
    """Run an ipyparallel controller whose sockets are files in `folder`: no ports, nothing to probe or collide with."""
    from ipyparallel.controller import app as controller_app
    from ipyparallel.controller.dictdb import NoDB

    controller_app.time = _NoSleep()
    os.umask(0o077)

    class Controller(controller_app.IPController):
        numbers = iter(range(1, 1000))

        def next_port(self, pool_name: str = "common") -> int:
            return next(self.numbers)

        def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
            info = {"engine": self.engine_info, "client": self.client_info, "internal": self.internal_info}[kind]
            name = info[channel] if index is None else info[channel][index]
            return f"{info['interface']}:{name}"

    app = Controller(config=_config(folder), use_threads=True, enable_curve=False, db_class=NoDB)
    app.transport, app.ip, app.location = "ipc", os.path.join(folder, "s"), "127.0.0.1"
    app.config.HeartMonitor.period = 200
    app.config.HeartMonitor.max_heartmonitor_misses = 1000
    app.initialize([])
    app.start()


class _NoSleep:
    """Stands in for the `time` module of ipyparallel's controller, which sleeps a quarter of a second at its start."""

    def __getattr__(self, name: str) -> Any:
        return (lambda seconds: None) if name == "sleep" else getattr(time, name)


def engine(folder: str) -> None:
    """Run an ipyparallel engine that registers with the controller of `folder`."""
    from ipyparallel.engine.app import IPEngine

    app = IPEngine(
        config=_config(folder),
        url_file=os.path.join(folder, "security", "ipcontroller-engine.json"),
        enable_nanny=False,
        max_heartbeat_misses=0,
        timeout=60,
    )
    app.initialize([])
    app.start()


def _config(folder: str) -> Any:
    from traitlets.config import Config

    config = Config()
    config.Application.log_level = config.BaseParallelApplication.log_level = 40
    config.ProfileDir.location = folder
    config.BaseParallelApplication.ipython_dir = folder
    config.BaseParallelApplication.work_dir = os.getcwd()
    config.HistoryManager.enabled = False
    return config


def peer_uid(connection: socket.socket) -> int | None:
    """The user at the other end of a Unix socket, or None where the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]


def how_it_ended(status: int) -> str:
    """A wait status in words: `exit code 3`, `killed by signal 9 (SIGKILL)`."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    return f"killed by signal {-code} ({signal.Signals(-code).name})"


def count_gpus(env: dict[str, str]) -> int:
    """Count the GPUs that the notebook's environment shows, in a child: this process never touches CUDA."""
    pid = os.fork()
    if not pid:
        count = 0
        try:
            os.environ.clear()
            os.environ.update(env)
            import torch

            count = min(torch.cuda.device_count(), 200)
        finally:
            os._exit(count)
    return max(0, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
