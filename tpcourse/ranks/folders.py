"""Private folders of this user's sessions, each with a note of its owner, swept when the owner is gone."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

MAX_PATH = 70  # a Unix socket's name has to fit into 104 characters


def make_folder(kind: str) -> Path:
    """A new folder that only this user can enter, with a note of this process as its owner."""
    sweep()
    root = _root()
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"tpcourse-{os.getuid()}-{kind}-", dir=root))
        note = {"pid": os.getpid(), "started": started(os.getpid())}
        (folder / "owner.json").touch(mode=0o600)
        (folder / "owner.json").write_text(json.dumps(note))
    except OSError as error:
        raise OSError(
            f"no private folder for the ranks could be made in {root} ({error.strerror}): "
            "free some space there, or set TMPDIR to a folder that you can write"
        ) from None
    return folder


def _root() -> str:
    root = tempfile.gettempdir()
    return root if len(root) <= MAX_PATH else "/tmp"


def folders() -> list[tuple[Path, int, bool]]:
    """This user's folders: `(folder, owner's process id, owner still runs)`."""
    found = []
    for folder in sorted(Path(_root()).glob(f"tpcourse-{os.getuid()}-*")):
        try:
            note = json.loads((folder / "owner.json").read_text())
            found.append((folder, note["pid"], started(note["pid"]) == note["started"]))
        except (OSError, ValueError, KeyError):
            continue  # being made or removed at this moment
    return found


def sweep() -> None:
    """Remove folders whose owner is gone."""
    for folder, _, alive in folders():
        if not alive:
            shutil.rmtree(folder, ignore_errors=True)


def started(pid: int) -> float | None:
    """When a process started, or None if there is none: an id alone may have a new owner."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None
