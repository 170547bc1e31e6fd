"""How many ranks one person may have on a machine that many share: set in one place, by whoever looks after it.

The file /etc/tpcourse.toml holds the line `ranks_per_person = 4`; the environment variable TPCOURSE_RANKS_PER_PERSON
says the same where a file is unhandy, as in a container. If both are there the smaller number holds.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpcourse.ranks.folders import folders

VARIABLE = "TPCOURSE_RANKS_PER_PERSON"
FILE = Path("/etc/tpcourse.toml")
KEY = "ranks_per_person"
NOTE = "num_ranks"


@dataclass(frozen=True)
class Cap:
    """A number of ranks and where it was set."""

    ranks: int
    place: str


def cap(environ: Mapping[str, str] | None = None, file: Path | None = None) -> Cap | None:
    """The cap that holds here, or None.

    Raises: ValueError that names the place if what stands there is no whole number above 0.
    """
    environ, file = os.environ if environ is None else environ, file or FILE
    found: list[tuple[object, str]] = []
    if environ.get(VARIABLE):
        found.append((environ[VARIABLE], f"the environment variable {VARIABLE}"))
    with suppress(FileNotFoundError, PermissionError):
        found += [(value, str(file)) for key, value in _read(file).items() if key == KEY]
    caps = [Cap(_number(value, place), place) for value, place in found]
    return min(caps, key=lambda one: one.ranks, default=None)


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} cannot be read: {error}. It holds one line, for example {KEY} = 4") from None


def _number(value: object, place: str) -> int:
    text = str(value).strip()
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{KEY} = {value!r} in {place}: a whole number above 0, for example 4")
    return int(text)


def note(folder: Path, count: int) -> None:
    """Write down how many ranks a session has."""
    (folder / NOTE).touch(mode=0o600)
    (folder / NOTE).write_text(str(count))


def running() -> dict[int, int]:
    """Process id of each of this person's notebooks -> how many ranks it has running on this machine."""
    found: dict[int, int] = {}
    for folder, pid, alive in folders():
        with suppress(OSError, ValueError):
            count = int((folder / NOTE).read_text())
            if alive:
                found[pid] = found.get(pid, 0) + count
    return found


def within(n: int | None, count: int, folder: Path) -> int:
    """`count` ranks, or fewer if nobody asked for a number and the cap is lower; noted in `folder` as running.

    Raises: RuntimeError that says what the cap is, where it was set, and which notebooks use it up.
    """
    limit = cap()
    others = running()
    if limit is None:
        note(folder, count)
        return count
    if n is None and not others:
        count = min(count, limit.ranks)
    note(folder, count)  # first note, then look: of two that start at once, one sees the other
    others = running()
    used = sum(others.values()) - count
    if used + count <= limit.ranks:
        return count
    held = [f"process {pid} has {number}" for pid, number in others.items() if number and pid != os.getpid()]
    ways = "stop those with ranks.stop() or by shutting down their notebooks" if used else f"start_ranks({limit.ranks})"
    already = f", and {used} of yours are running ({', '.join(held)})" if used else ""
    raise RuntimeError(
        f"{count} more ranks are too many: a person may have {limit.ranks} on this machine ({limit.place}){already}. "
        f"Way out: {ways}"
    )
