"""What the operating system gives: shared memory, names, loopback, a home, a browser."""

import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

from tpcourse.cli.doctor.finding import Finding
from tpcourse.cli.machine import cards
from tpcourse.home import home_is_writable

MIB = 2**20
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def shared_memory(folder: str = "/dev/shm") -> Iterator[Finding]:
    """The size of /dev/shm: containers have 64 MB, and NCCL wants more."""
    if not sys.platform.startswith("linux"):
        return
    if not os.path.isdir(folder):
        yield Finding("warn", "shared memory", f"there is no {folder}; gloo works without it, NCCL may not")
        return
    size = os.statvfs(folder)
    total = size.f_blocks * size.f_frsize
    text = f"{total / MIB:.0f} MiB in {folder}"
    if total < 256 * MIB:
        where = "NCCL will fail or be slow" if cards() else "enough for ranks on the CPU; NCCL on GPUs wants more"
        text += f": {where}.\nStart the container with --shm-size=1g"
    yield Finding("warn" if total < 256 * MIB else "ok", "shared memory", text)


def host_name() -> Iterator[Finding]:
    """Whether the host's own name resolves. The course does not depend on it."""
    name = socket.gethostname()
    address = _address(name)
    if address:
        yield Finding("ok", "host name", f"{name} is {address}; the course does not ask for it")
    else:
        yield Finding("ok", "host name", f"{name} does not resolve. The course does not mind (loopback, by address);\n"
                      f"other programs may: add '127.0.1.1 {name}' to /etc/hosts")  # fmt: skip


def _address(name: str, timeout_s: float = 3) -> str | None:
    """The address of a name; None if there is none, or none soon."""
    found: list[str] = []

    def ask() -> None:
        with suppress(OSError, UnicodeError):
            found.append(socket.gethostbyname(name))

    asking = threading.Thread(target=ask, daemon=True)      # a lookup cannot be stopped, only left behind
    asking.start()
    asking.join(timeout_s)
    return found[0] if found else None


def loopback() -> Iterator[Finding]:
    """A connection to 127.0.0.1, on a port that the system chooses."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2).close()
    except OSError as error:
        yield Finding("fail", "loopback", f"127.0.0.1 cannot be reached ({error}); ranks and Jupyter talk over it")
    else:
        yield Finding("ok", "loopback", "127.0.0.1 answers")


def home() -> Iterator[Finding]:
    """Whether the home can be written; if not, where things go instead."""
    place = os.environ.get("HOME") or os.path.expanduser("~")
    if home_is_writable():
        yield Finding("ok", "home", f"{place} can be written")
    else:
        instead = os.environ.get("JUPYTER_CONFIG_DIR")
        yield Finding("warn", "home", f"{place} cannot be written; Jupyter's settings are in {instead}, until it ends")


def browser() -> Iterator[Finding]:
    """A Chromium for the browser test; nobody else needs it."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    yield Finding("ok", "browser", found or "no Chromium: only the browser test of `make test` is skipped")
