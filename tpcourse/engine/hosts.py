"""Ranks on several hosts: which addresses this host has, which of another it reaches, and over which interface."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

REACH_S = 2.0
LOOPBACK = ("lo", "lo0")
USES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def addresses() -> list[str]:
    """The IPv4 addresses of this host, without loopback: one of them is where the other hosts find it."""
    return [address for _, address in _interfaces() if not address.startswith("127.")]


def _interfaces() -> list[tuple[str, str]]:
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return [
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in up
    ]


def reached(candidates: list[str], port: int) -> list[str]:
    """Those addresses under which something answers on `port`, seen from here."""
    found = []
    for address in candidates:
        with suppress(OSError):
            socket.create_connection((address, port), timeout=REACH_S).close()
            found.append(address)
    return found


def talk_towards(address: str) -> None:
    """Let gloo and NCCL use the interface that leads to `address`, unless the user named one.

    Trap: by default gloo takes the interface of the host's own name, which is often loopback.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing: asks the system for the way
        mine = probe.getsockname()[0]
    names = [name for name, known in _interfaces() if known in (mine, address)]
    for variable in USES:
        if names and os.environ.get(variable) in (None, *LOOPBACK):
            os.environ[variable] = names[0]
