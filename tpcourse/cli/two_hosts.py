"""Two hosts, alpha and beta, on one machine: network namespaces with a cable between them that can be shaped and cut.

`command` starts a process that is alone with its children: own network, host name, process ids and mounts. Whatever
happens to it, the kernel ends its children and takes the namespaces back; nothing has a name outside of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

ALONE = ["unshare", "--fork", "--pid", "--kill-child", "--mount-proc", "--net", "--uts", "--"]
PROGRAMS = ("unshare", "nsenter", "ip", "hostname")
ALPHA, BETA = "10.77.0.1", "10.77.0.2"
CABLE = ("cable0", "cable1")


def missing(programs: Sequence[str] = ()) -> str | None:
    """Why this machine cannot play two hosts, in a sentence; None if it can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    absent = [name for name in (*PROGRAMS, *programs) if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (Debian: iproute2, openssh-server, openmpi-bin)"
    probe = ["sh", "-c", "ip link add cable0 type veth peer name cable1 && hostname alpha"]
    done = subprocess.run([*ALONE, *probe], capture_output=True, text=True)
    return f"this system allows no network namespaces: {done.stderr.strip()}" if done.returncode else None


def command(*words: str) -> list[str]:
    """The command that runs `words` alone, so that `TwoHosts` may be made in it."""
    return [*ALONE, *words]


def end_with_parent() -> None:
    """End this process, and with it all of its children, when its standard input closes: its parent is gone."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(3)

    threading.Thread(target=wait, daemon=True, name="parent").start()


class TwoHosts:
    """This process becomes host alpha; host beta is at the other end of a cable."""

    def __enter__(self) -> TwoHosts:
        run("hostname", "alpha")
        self.beta = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", "hostname beta; exec sleep infinity"])
        mine, its = "/proc/self/ns/net", f"/proc/{self.beta.pid}/ns/net"
        while os.readlink(mine) == os.readlink(its):
            time.sleep(0.01)
        run("ip", "link", "add", CABLE[0], "type", "veth", "peer", "name", CABLE[1])
        run("ip", "link", "set", CABLE[1], "netns", str(self.beta.pid))
        for place, cable, address in (([], CABLE[0], ALPHA), (self.on_beta(), CABLE[1], BETA)):
            run(*place, "ip", "link", "set", "lo", "up")
            run(*place, "ip", "address", "add", f"{address}/24", "dev", cable)
            run(*place, "ip", "link", "set", cable, "up")
        return self

    def __exit__(self, *_: object) -> None:
        self.beta.kill()
        self.beta.wait()

    def on_beta(self, *words: str) -> list[str]:
        """The command that runs `words` on beta."""
        return ["nsenter", "--target", str(self.beta.pid), "--net", "--uts", *words]

    def cut(self) -> None:
        """Pull the cable out."""
        run("ip", "link", "set", CABLE[0], "down")

    def shape(self, rate: str | None) -> None:
        """Let the cable carry `rate` each way ("1gbit"); None takes the shape off."""
        for place, cable in (([], CABLE[0]), (self.on_beta(), CABLE[1])):
            tc = [*place, "tc", "qdisc"]
            subprocess.run([*tc, "del", "dev", cable, "root"], capture_output=True)
            if rate is not None:
                run(*tc, "add", "dev", cable, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")


def can_delay() -> bool:
    """Whether this kernel can add a delay to a cable (netem); call it as host alpha."""
    done = subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "0ms"], capture_output=True)
    return done.returncode == 0


def run(*words: str) -> None:
    """Run a command; its words are in the error if it fails."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
