"""Real ranks for unit tests: `run_ranks(fn, world_size, *args)` returns one result per rank.

Ranks are forked from a server process that imported torch beforehand (0.2 s, not 12), and those of one size
are kept for the next call. They are replaced after any error, so no test sees what another left in a group.
`fn(rank, group, *args)` is a function of a test module; arguments and results must be picklable. A rank
starts every call with seed 0 and default dtype float32.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

PRELOAD = [
    "torch", "torch.distributed", "torch.fx.experimental.symbolic_shapes", "numpy", "pytest",
    "torch._dynamo", "torch.distributed.tensor.parallel",
]  # fmt: skip
"""What ranks need in their first call; the third is what torch imports at the first gradient, the last two at the first
dispatch mode and DTensor."""
STACK_S = 10.0
"""How long a rank may take to say where it is."""
GRACE_S = 1.0
"""How long the others may still run after the first rank raised: they may be waiting for it for ever."""


class RankFailureError(AssertionError):
    """Ranks that did not finish, or died: which, and where their Python was."""


class Team:
    """The ranks of one group, each in its own process, waiting for work."""

    def __init__(self, world_size: int, backend: str = "gloo") -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.folder = tempfile.TemporaryDirectory(prefix="tpcourse-rig-")
        self.connections: list[Connection] = []
        self.processes = []
        with _no_main_module():
            for rank in range(world_size):
                ours, theirs = context.Pipe()
                arguments = (rank, world_size, backend, self.folder.name, theirs)
                process = context.Process(target=_serve, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self.connections.append(ours)
                self.processes.append(process)

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], timeout: float) -> list[Any]:
        """Run fn on every rank; results in rank order."""
        message = pickle.dumps((list(sys.path), pickle.dumps((fn, args))))
        for connection in self.connections:
            with contextlib.suppress(BrokenPipeError):
                connection.send_bytes(message)
        answers = self._collect(time.monotonic() + timeout)
        failures = {rank: error for rank, (error, _) in answers.items() if error is not None}
        if not failures and len(answers) == len(self.processes):
            return [answers[rank][1] for rank in range(len(self.processes))]
        late = [rank for rank in range(len(self.processes)) if rank not in answers]
        where = self._lines(late)
        self.close()
        raise _failure(failures, late, where, timeout)

    def _collect(self, deadline: float) -> dict[int, tuple[Any, Any]]:
        answers: dict[int, tuple[Any, Any]] = {}
        waiting = dict(zip(self.connections, range(len(self.connections)), strict=True))
        while waiting and (left := deadline - time.monotonic()) > 0:
            for connection in wait(list(waiting), left):
                rank = waiting.pop(connection)
                answers[rank] = self._answer(rank)
                if answers[rank][0] is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        return answers

    def _answer(self, rank: int) -> tuple[Any, Any]:
        try:
            return pickle.loads(self.connections[rank].recv_bytes())
        except (EOFError, ConnectionError):
            self.processes[rank].join(1)
            text = f"the process of rank {rank} died (exit code {self.processes[rank].exitcode})"
            return (RankFailureError(text), text), None

    def _lines(self, ranks: list[int]) -> str:
        """Where the Python of these ranks is now; a rank that waits in C++ answers too."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[rank].pid, signal.SIGUSR1)
        texts = [_of_the_call(self._stack(rank)) for rank in ranks]
        return "\n".join(f"rank {rank}:\n{text}" for rank, text in zip(ranks, texts, strict=True))

    def _stack(self, rank: int) -> str:
        """What a rank wrote about where it is; empty if it does not answer."""
        path, end = Path(self.folder.name, f"stack-{rank}"), time.monotonic() + STACK_S
        while self.processes[rank].is_alive() and time.monotonic() < end and not path.read_text().endswith("\n"):
            time.sleep(0.05)
        time.sleep(0.05)
        return path.read_text()

    def close(self) -> None:
        """End every process of this team, whatever it is doing."""
        for process in self.processes:
            process.kill()
        for process, connection in zip(self.processes, self.connections, strict=True):
            process.join(5)
            connection.close()
        self.folder.cleanup()

    @property
    def is_open(self) -> bool:
        """Whether all ranks are alive and ours."""
        return all(not c.closed for c in self.connections) and all(p.is_alive() for p in self.processes)


def _of_the_call(stack: str) -> str:
    """The stack without the lines that are the same in every rank: the rig's and those below it."""
    return stack.split(f'  File "{__file__}"')[0]


_TEAMS: dict[tuple[int, str], Team] = {}


def run_ranks(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 60, backend: str = "gloo"
) -> list[Any]:
    """`fn(rank, group, *args)` on `world_size` ranks; results in rank order.

    `backend="nccl"` gives each rank a GPU, for tests marked `gpu`.
    Raises: what the ranks raised, once, with the ranks' traceback as a note; RankFailureError if some do
    not finish within `timeout` seconds or die, with the line each was at.
    """
    team = _TEAMS.get((world_size, backend))
    if team is None or not team.is_open:
        close_team(world_size, backend)
        team = _TEAMS[world_size, backend] = Team(world_size, backend)
    try:
        return team.call(fn, args, timeout)
    except BaseException:
        close_team(world_size, backend)
        raise


def close_team(world_size: int, backend: str = "gloo") -> None:
    """End the kept ranks of one size, so that the next call starts fresh processes."""
    team = _TEAMS.pop((world_size, backend), None)
    if team is not None and any(not c.closed for c in team.connections):
        team.close()


@atexit.register
def close_teams() -> None:
    """End all kept ranks."""
    for world_size, backend in list(_TEAMS):
        close_team(world_size, backend)


@contextlib.contextmanager
def _no_main_module() -> Any:
    """Without this each rank would import the program that runs the tests once more."""
    main = sys.modules["__main__"]
    saved = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    try:
        main.__spec__ = None
        if "__file__" in saved:
            del main.__file__
        yield
    finally:
        for name, value in saved.items():
            setattr(main, name, value)


def _failure(failures: dict[int, Any], late: list[int], where: str, timeout: float) -> BaseException:
    names = ", ".join(map(str, late))
    if not failures:
        return RankFailureError(f"rank {names} did not finish within {timeout:g} s\n{where}")
    first = min(failures)
    exception, text = failures[first]
    same = [rank for rank in sorted(failures) if repr(failures[rank][0]) == repr(exception)]
    exception.add_note(f"raised on rank {', '.join(map(str, same))}:\n{text}")
    for rank in sorted(set(failures) - set(same)):
        exception.add_note(f"and on rank {rank}: {failures[rank][0]!r}")
    if late:
        exception.add_note(f"rank {names} did not finish, and was ended:\n{where}")
    return exception


def _serve(rank: int, world_size: int, backend: str, folder: str, connection: Connection) -> None:
    """What a rank does: join the group, then answer calls until the other end is gone."""
    gc.freeze()  # what it shares with the other ranks is not looked through: a collector that looks writes, and copies
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    stack = open(Path(folder, f"stack-{rank}"), "w")  # noqa: SIM115 (open as long as the process)
    faulthandler.register(signal.SIGUSR1, stack, all_threads=False)
    import torch

    group = _join(rank, world_size, backend, folder)
    while True:
        try:
            path, call = pickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            os._exit(0)
        sys.path[:] = path
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float32)
        connection.send_bytes(_answer(call, rank, group))


def _join(rank: int, world_size: int, backend: str, folder: str) -> Any:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else None
    if device is not None:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/meet",
        timeout=timedelta(seconds=120),
        world_size=world_size,
        rank=rank,
        device_id=device,
    )
    return dist.group.WORLD


def _answer(call: bytes, rank: int, group: Any) -> bytes:
    """The pickled pair (None, result) or ((exception, traceback), None)."""
    try:
        fn, args = pickle.loads(call)
        return pickle.dumps((None, fn(rank, group, *args)))
    except BaseException as error:  # a rank must answer, whatever happens
        text = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return pickle.dumps(((error.with_traceback(None), text), None))
