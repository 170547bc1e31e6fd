"""The fork server: a process that imported torch once and forks engines and controllers from then on.

It belongs to whoever started it (a notebook's kernel, `tpcourse lab`, a test run, the grader) and ends with its owner.
Each client is a session: everything forked for it is one process group, killed when the client's socket closes.
The server stays single-threaded and never touches CUDA, so that forking it is safe.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tpcourse.ranks import children

PRELOAD = (
    "ipykernel.debugger",
    "ipyparallel.engine.app",
    "IPython.core.completerlib",
    "IPython.extensions.storemagic",
    "tornado.platform.asyncio",
    "tornado.queues",
    "ipyparallel.controller.app",
    "torch",
    "torch.distributed",
    "torch.distributed.device_mesh",
    "tpcourse.engine",
    "tpcourse.ledger.hooks",
    "tpcourse.ledger.record",
)
LATER = (
    "tpcourse.check.rank_side",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed._functional_collectives",
    "torch.distributed.tensor",
)


@dataclass
class Session:
    """One notebook: its socket, what was forked for it, and the bytes of a request not yet complete."""

    connection: socket.socket
    group: int = 0
    folder: str = ""
    alive: set[int] = field(default_factory=set)
    buffer: bytes = b""

    def tell(self, **message: object) -> None:
        with suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def kill(self) -> None:
        """End the whole group at once: ranks, controller and whatever they started."""
        if self.alive:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.group, signal.SIGKILL)


class Server:
    """Accepts sessions on a private socket, forks children for them, tells them who died."""

    def __init__(self, path: str, owner_fd: int | None) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        os.chmod(path, 0o600)
        self.listener.listen(64)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        if owner_fd is not None:
            self.selector.register(owner_fd, selectors.EVENT_READ, self.owner_ended)
        self.sessions: list[Session] = []
        self.to_import = [*PRELOAD, *LATER]  # what a first backward or DTensor would import comes last
        self.owner = os.getppid()

    def serve(self) -> None:
        """Answer requests; import the next module whenever nothing waits."""
        while True:
            for key, _ in self.selector.select(0 if self.to_import else 0.05):
                key.data(key.fileobj)
            self.reap()
            if self.to_import:
                self.import_next()
            if os.getppid() != self.owner:
                self.owner_ended(None)

    def import_next(self) -> None:
        name = self.to_import.pop(0)
        if name == "ipykernel.debugger":  # without debugpy, which engines do not need and which takes half a second
            sys.modules["debugpy"] = None  # type: ignore[assignment]
        importlib.import_module(name)
        if sys.modules.get("debugpy", self) is None:
            del sys.modules["debugpy"]
        if not self.to_import:
            gc.collect()

    def accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if children.peer_uid(connection) not in (None, os.getuid()):
            connection.close()
            return
        session = Session(connection)
        self.sessions.append(session)
        self.selector.register(connection, selectors.EVENT_READ, lambda _: self.read(session))

    def read(self, session: Session) -> None:
        try:
            data = session.connection.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.end(session)
            return
        *requests, session.buffer = (session.buffer + data).split(b"\n")
        for request in requests:
            self.answer(session, **json.loads(request))

    def answer(self, session: Session, do: str, **request: Any) -> None:
        if do == "kill":
            for pid in set(request["pids"]) & session.alive:  # only what was forked for this session
                os.kill(pid, signal.SIGKILL)
            return
        while do != "controller" and set(self.to_import) & set(PRELOAD):
            self.import_next()
        if do == "gpus":
            session.tell(gpus=children.count_gpus(request["place"]["env"]))
            return
        run = {"controller": children.controller, "engines": children.engine}[do]
        session.folder = request["place"]["folder"]
        session.tell(forked=[self.fork(session, run, request["place"]) for _ in range(request["count"])])

    def fork(self, session: Session, run: Callable[[str], None], place: dict[str, Any]) -> int:
        """Fork a child of the session's process group that becomes what `run` makes of it."""
        gc.freeze()  # else each child's collector writes to all that it shares with the others
        pid = os.fork()
        if pid:
            session.group = session.group or pid
            with suppress(OSError):
                os.setpgid(pid, session.group)
            session.alive.add(pid)
            return pid
        status = 1
        try:
            self.forget()
            children.become(session.group, **place)
            run(place["folder"])
            status = 0
        finally:
            os._exit(status)

    def forget(self) -> None:
        """In a forked child: close what belongs to the server."""
        self.selector.close()
        self.listener.close()
        for session in self.sessions:
            session.connection.close()

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for session in self.sessions:
                if pid in session.alive:
                    session.alive.discard(pid)
                    session.tell(died=pid, how=children.how_it_ended(status))

    def end(self, session: Session) -> None:
        self.selector.unregister(session.connection)
        session.connection.close()
        session.kill()
        shutil.rmtree(session.folder, ignore_errors=True)
        self.sessions.remove(session)

    def owner_ended(self, source: int | None) -> None:
        if source is not None and os.read(source, 1):
            return
        for session in self.sessions:
            session.kill()
            shutil.rmtree(session.folder, ignore_errors=True)
        shutil.rmtree(os.path.dirname(self.listener.getsockname()), ignore_errors=True)
        os._exit(0)


def main() -> None:
    """`python -m tpcourse.ranks.server SOCKET`: serve until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Server(sys.argv[1], owner_fd=0).serve()


if __name__ == "__main__":
    main()
