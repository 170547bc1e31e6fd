"""The system calls of Linux that Python 3.11 has no names for; each raises OSError where it is refused."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import sys
from pathlib import Path

NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_SET_PARENT_DEATH_SIGNAL, _DROP_BOUNDING, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 24, 36, 38


def _call(name: str, *args: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = getattr(libc, name)(*args)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave namespaces behind for new ones; process numbers are new for children only."""
    _call("unshare", ctypes.c_int(flags))


def map_user(uid: int, gid: int) -> None:
    """In a new user namespace: this user keeps its number, and there is no other."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def mount(source: str, target: str | Path, kind: str, flags: int, options: str = "") -> None:
    """mount(2)."""
    _call("mount", source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())


def private_mounts() -> None:
    """Keep later mounts of this namespace from showing anywhere else."""
    mount("none", "/", "", _RECURSIVE | _PRIVATE)


def memory_folder(path: str | Path, num_bytes: int, mode: str = "700") -> None:
    """Cover a folder with an empty one in memory, of limited size."""
    mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV, f"size={num_bytes},mode={mode}")


def bind(source: str | Path, target: str | Path) -> None:
    """Let a folder, with all that is mounted in it, also appear at `target`."""
    mount(os.fspath(source), target, "", _BIND | _RECURSIVE)


def mount_processes() -> None:
    """/proc of this process-number namespace."""
    mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)


def read_only(path: str | Path, allowed: bool = False) -> None:
    """Make everything below a mount read-only, or (`allowed`) writable again."""
    attributes = struct.pack("QQQQ", 0 if allowed else _READ_ONLY, _READ_ONLY if allowed else 0, 0, 0)
    number, size = ctypes.c_long(_MOUNT_SETATTR), ctypes.c_size_t(len(attributes))
    _call("syscall", number, ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_uint(_AT_RECURSIVE), attributes, size)


def _prctl(option: int, value: int = 0) -> None:
    unused = (ctypes.c_ulong(0),) * 3
    _call("prctl", ctypes.c_int(option), ctypes.c_ulong(value), *unused)


def drop_capabilities() -> None:
    """Give up every capability, for this process and all that it starts."""
    for capability in range(64):
        try:
            _prctl(_DROP_BOUNDING, capability)
        except OSError:
            break
    _prctl(_NO_NEW_PRIVILEGES, 1)
    header, none = struct.pack("II", 0x20080522, 0), bytes(24)
    _call("capset", header, none)


def end_with_parent() -> None:
    """Be killed when the parent ends."""
    if sys.platform == "linux":
        _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ended, so that none escapes."""
    if sys.platform == "linux":
        _prctl(_SUBREAPER, 1)


def loopback_up() -> None:
    """Switch on `lo` in a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))


def limit(memory_bytes: int, num_processes: int, file_bytes: int) -> None:
    """Limits for this process and each of its descendants."""
    wanted = {
        resource.RLIMIT_DATA: memory_bytes,
        resource.RLIMIT_NPROC: num_processes,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in wanted.items():
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
