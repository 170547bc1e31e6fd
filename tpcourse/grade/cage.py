"""Two cages of namespaces: the outer holds a submission's whole run, the inner what the student wrote.

`enter` makes a cage and forks the process that lives in it. Nothing of it is left when that process ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tpcourse.grade import system

NAMESPACES, LIMITS = "namespaces", "limits"
FIRST_UID = 2_000_000_000  # users that no system gives out; one a process id


@dataclass(frozen=True)
class Limits:
    """What one submission may use; seconds for the whole and for a cell, bytes for a process, for all, for files."""

    total_s: float = 600.0
    cell_s: float = 60.0
    process_bytes: int = 4 << 30
    all_bytes: int = 8 << 30
    disk_bytes: int = 512 << 20
    file_bytes: int = 64 << 20
    num_processes: int = 512


def start(child: Callable[[], None], *prepare: Callable[[], None]) -> int:
    """Fork; the child prepares, runs and ends, whatever happens. Returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for step in prepare:
            step()
        child()
        status = 0
    except BaseException as error:
        with suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(status)


def outer(private: Path, limits: Limits, hidden: Sequence[Path], kept: Sequence[Path]) -> None:
    """Leave this machine's processes, network and files behind; all is read-only but `private`, which is in memory."""
    if os.getuid():
        uid, gid = os.getuid(), os.getgid()
        system.unshare(system.NEW_USER | system.NEW_MOUNTS)
        system.map_user(uid, gid)
    else:
        system.unshare(system.NEW_MOUNTS)
    system.private_mounts()
    system.read_only("/")
    system.memory_folder(private, limits.disk_bytes)
    (private / "box").mkdir()
    system.memory_folder(private / "box", limits.disk_bytes)  # of its own: full, it does not stop the judge
    cover(hidden, kept, [private])
    _leave_the_rest()


def inner(box: Path, hidden: Sequence[Path], kept: Sequence[Path]) -> None:
    """Leave the judge behind: `hidden` folders are empty now, but for what of `kept` lies in them, and `box`."""
    system.unshare(system.NEW_MOUNTS)
    system.memory_folder("/dev/shm", 64 << 20, mode="1777")
    cover(hidden, kept, [box])
    _leave_the_rest()


def _leave_the_rest() -> None:
    system.unshare(system.NEW_PIDS | system.NEW_NETWORK | system.NEW_IPC)
    system.loopback_up()


def cover(hidden: Sequence[Path], kept: Sequence[Path], writable: Sequence[Path]) -> None:
    """Cover folders with empty ones in which only these paths appear, read-only or not."""
    folders = [path for path in sorted(set(hidden)) if path.is_dir() and not set(path.parents) & set(hidden)]
    wanted = [path for path in (*kept, *writable) if set(path.parents) & set(folders)]
    handles = [os.open(path, os.O_PATH) for path in wanted]
    for folder in folders:
        system.memory_folder(folder, 1 << 20, mode="755")
    for handle, target in zip(handles, wanted, strict=True):
        target.mkdir(parents=True, exist_ok=True)
        system.bind(f"/proc/self/fd/{handle}", target)
        os.close(handle)
    for folder in folders:
        system.read_only(folder)
    for target in set(wanted) & set(writable):
        system.read_only(target, allowed=True)


def first_process() -> None:
    """What the first process of a new process-number namespace does first."""
    system.end_with_parent()
    system.mount_processes()


def become_nobody(uid: int) -> None:
    """Give up root for a user that owns nothing, and every capability."""
    if os.getuid() == 0 and uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if sys.platform == "linux":
        with suppress(OSError):
            system.drop_capabilities()


@cache
def level() -> str:
    """`namespaces` where this system lets us have them, else `limits`; tried in a child."""
    if sys.platform != "linux" or os.environ.get("TPCOURSE_CAGE") == LIMITS:
        return LIMITS
    quiet = os.open(os.devnull, os.O_WRONLY)

    def attempt() -> None:
        os.dup2(quiet, 2)
        outer(Path("/tmp"), Limits(), [], [])
        nested = start(lambda: None, first_process, lambda: inner(Path("/tmp/box"), [], []))
        os._exit(os.waitstatus_to_exitcode(os.waitpid(nested, 0)[1]))

    status = os.waitpid(start(attempt), 0)[1]
    os.close(quiet)
    return NAMESPACES if status == 0 else LIMITS
