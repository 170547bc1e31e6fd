"""Processes of ours whose owner is gone: found by what they are, ended by process id, never by a pattern."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from tpcourse.cli.doctor.finding import Finding

SERVER = ["-m", "tpcourse.ranks.server"]


def leftovers(clean: bool = False) -> Iterator[Finding]:
    """List what dead notebooks of this user left behind; with `clean`, end it."""
    found = [process for process in psutil.process_iter() if _is_left_over(process)]
    if not found:
        yield Finding("ok", "leftovers", "none")
        return
    ids = ", ".join(str(process.pid) for process in found)
    if not clean:
        yield Finding("warn", "leftovers", f"processes of dead notebooks: {ids}. `tpcourse doctor --clean` ends them")
        return
    for process in found:
        _end(process)
    _, alive = psutil.wait_procs(found, timeout=2)
    left = ", ".join(str(process.pid) for process in alive)
    yield Finding("warn" if alive else "ok", "leftovers", f"ended: {ids}" + (f"; still there: {left}" if left else ""))


def _is_left_over(process: psutil.Process) -> bool:
    """Ours, of this user, and its owner ended: a fork server or what it forked, named by its private socket."""
    try:
        line = process.cmdline()
        ours = line[-3:-1] == SERVER and process.uids().real == os.getuid()
        return ours and process.status() != psutil.STATUS_ZOMBIE and not _owner_runs(Path(line[-1]).parent)
    except (psutil.Error, OSError):
        return False


def _owner_runs(folder: Path) -> bool:
    """Whether the process that made a private folder still runs; a folder that is gone has no owner."""
    from tpcourse.ranks.folders import folders

    return any(alive for known, _, alive in folders() if known == folder)


def _end(process: psutil.Process) -> None:
    """Kill by id, after a last look that the id still is that process."""
    with contextlib.suppress(psutil.Error):
        if process.is_running() and _is_left_over(process):
            process.kill()
