"""What still runs in a gloo group that was left with calls under way: its thread that waits for the network.

When data arrives for a receive whose memory is gone, that thread neither reads it nor stops looking: one core is busy
for as long as the process lives. Nobody will read it, so the thread gets sockets to look at on which nothing happens.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Made = TypeVar("Made")
HAS_EPOLL = sys.platform == "linux"


class Loops:
    """The event loops (epoll, Linux) that came with each group; on another system there is nothing to do."""

    def __init__(self) -> None:
        self.loops: list[tuple[Any, set[int]]] = []

    def watching(self, make: Callable[[], Made]) -> Made:
        """`make()`, which returns a new group, and remember the loops that it brought."""
        before = _loops()
        group = make()
        self.loops.append((group, _loops() - before))
        return group

    def quiet(self, groups: list[Any]) -> None:
        """Let the loops of these groups sleep. They are never used again, and must stay alive.

        Trap: gloo ends the process if it cannot take a socket out of its loop, as it does when a call times out. So
        every socket is replaced under its number by one on which nothing ever happens, which nobody closes and which
        does not block: the loop may be about to read what just came, with a lock in its hand.
        """
        for group, loops in self.loops:
            if any(group is left for left in groups):
                for loop in loops:
                    _quiet(loop)
        self.loops = []  # the others are about to be destroyed, and their numbers go to other files


def _quiet(loop: int) -> None:
    silent, _ = (end.detach() for end in socket.socketpair())  # open until the process ends
    os.set_blocking(silent, False)
    epoll = select.epoll.fromfd(os.dup(loop))
    for number in _sockets(loop):
        epoll.unregister(number)
        os.dup(number)  # the connection stays, so that no other rank hears of an end
        os.dup2(silent, number, inheritable=False)
        epoll.register(number, 0)
    epoll.close()


def _loops() -> set[int]:
    """The numbers of all epolls of this process."""
    return {number for number in _numbers() if _kind(number) == "anon_inode:[eventpoll]"} if HAS_EPOLL else set()


def _sockets(loop: int) -> list[int]:
    """The sockets that a loop looks at."""
    lines = Path(f"/proc/self/fdinfo/{loop}").read_text().splitlines()
    numbers = [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
    return [number for number in numbers if _kind(number).startswith("socket:")]


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _kind(number: int) -> str:
    with suppress(OSError):  # closed since
        return os.readlink(f"/proc/self/fd/{number}")
    return ""
