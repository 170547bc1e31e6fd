"""The notebook's end of the fork server: find one or start one, open a session, ask for processes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from tpcourse.ranks.folders import make_folder

VARIABLE = "TPCOURSE_SERVER"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class ServerProcess:
    """A fork server that ends with this process, however this process ends: it reads our end of a pipe."""

    def __init__(self) -> None:
        self.folder = make_folder("server")
        self.path = str(self.folder / "socket")
        env = os.environ | {name: os.environ.get(name, "1") for name in THREADS}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_package_root()), env.get("PYTHONPATH")]))
        env.pop(VARIABLE, None)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tpcourse.ranks.server", self.path],
                stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, start_new_session=True,
            )  # fmt: skip

    def stop(self) -> None:
        """End the server and all that it forked."""
        if self.process.stdin:
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        shutil.rmtree(self.folder, ignore_errors=True)


def _package_root() -> Path:
    return Path(__file__).resolve().parents[2]


@cache
def own_server() -> ServerProcess:
    """The fork server of this process, started at the first call."""
    return ServerProcess()


@contextmanager
def preload_server() -> Iterator[str]:
    """Start a fork server that notebooks started within this block will use: their ranks start in a second or two.

    Yields the path of its socket, which is also in the environment variable TPCOURSE_SERVER while the block runs.
    """
    server, before = ServerProcess(), os.environ.get(VARIABLE)
    os.environ[VARIABLE] = server.path
    try:
        yield server.path
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
        server.stop()


class Session:
    """A connection to a fork server. When it closes, or this process ends, everything forked for it is killed."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.socket = _connect(os.environ.get(VARIABLE))
        self.buffer = b""
        self.died: dict[int, str] = {}
        self.folder = make_folder("ranks")
        env = dict(os.environ if environ is None else environ)
        env.pop(VARIABLE, None)
        self.place: dict[str, Any] = {"folder": str(self.folder), "cwd": _cwd(), "env": env, "path": sys.path}

    def fork(self, do: str, count: int = 1, timeout_s: float = 60.0) -> list[int]:
        """Fork `count` children that run `do` (controller or engines); returns their process ids."""
        return self.ask(timeout_s, do=do, count=count, place=self.place)["forked"]

    def kill(self, pids: list[int]) -> None:
        """Kill processes that were forked for this session."""
        self.request(do="kill", pids=pids)

    def ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        self.request(**request)
        return self.answer(timeout_s)

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """The next answer of the server."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for message in self._messages(end - time.monotonic()):
                if "died" not in message:
                    return message
        raise TimeoutError(f"the fork server did not answer within {timeout_s:.0f} s; see {self.folder}")

    def look(self) -> dict[int, str]:
        """Process ids that ended so far, and how."""
        list(self._messages(0.0))
        return self.died

    def request(self, **request: Any) -> None:
        """Ask for something; `answer` waits for what comes back."""
        self.socket.settimeout(30)
        self.socket.sendall(json.dumps(request).encode() + b"\n")

    def _messages(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        self.socket.settimeout(max(timeout_s, 1e-3))
        with suppress(TimeoutError, BlockingIOError):
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the fork server of the ranks has ended; start_ranks() starts new ranks")
            self.buffer += data
        while b"\n" in self.buffer:
            line, self.buffer = self.buffer.split(b"\n", 1)
            message = json.loads(line)
            if "died" in message:
                self.died[message["died"]] = message["how"]
            yield message

    def close(self) -> None:
        """End everything that was forked for this session."""
        self.socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _connect(path: str | None) -> socket.socket:
    """Connect to the server at `path` if it answers, else to our own."""
    if path:
        with suppress(OSError):
            return _open(path)
    server = own_server()
    if server.process.poll() is not None:
        own_server.cache_clear()
        server = own_server()
    end = time.monotonic() + 60
    while time.monotonic() < end and server.process.poll() is None:
        with suppress(OSError):
            return _open(server.path)
        time.sleep(0.005)
    log = (server.folder / "log").read_text(errors="replace").strip().splitlines()
    raise RuntimeError(f"the fork server of the ranks did not start: {log[-1] if log else 'it printed nothing'}")


def _open(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return os.path.expanduser("~")
