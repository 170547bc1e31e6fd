"""Two users of one machine in lesson 01 at the same time: one interrupts, restarts and stops, the other goes on.

Needs root, to be two users; elsewhere it is skipped, with the reason.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("nobody", "daemon")
LIMIT_S = 400


def user(name: str) -> int | None:
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_uid
    return None


def hidden() -> dict[Path, set[str]]:
    """Folders that only root enters, such as root's home, and what of this Python and this checkout lies in them."""
    found: dict[Path, set[str]] = {}
    for needed in map(Path, (os.path.realpath(sys.executable), sys.prefix, sys.base_prefix, ROOT)):
        closed = [parent for parent in reversed(needed.parents) if not parent.stat().st_mode & 0o001]
        if closed:
            found.setdefault(closed[0], set()).add(needed.relative_to(closed[0]).parts[0])
    return found


def acting(name: str, *words: str) -> list[str]:
    """The command that runs `words` as another user; in mounts of its own what is hidden can be reached."""
    script = ["mount -t tmpfs -o mode=755 tmpfs /mnt"]
    for number, (folder, names) in enumerate(hidden().items()):
        top = f"/mnt/{number}"
        script += [f"mkdir {top}"]
        for inside in sorted(names):
            script += [f"mkdir '{top}/{inside}'", f"mount --rbind '{folder}/{inside}' '{top}/{inside}'"]
        script += [f"mount --rbind {top} '{folder}'"]
    become = f"setpriv --reuid={user(name)} --regid={user(name)} --clear-groups --"
    return ["unshare", "--mount", "--", "sh", "-ec", "; ".join([*script, f'exec {become} "$@"']), "sh", *words]


def why_not() -> str | None:
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "to be two users needs Linux and root"
    if None in map(shutil.which, ("setpriv", "unshare", "mount")) or None in map(user, NAMES):
        return f"setpriv, unshare, mount or one of the users {', '.join(NAMES)} is missing"
    code = "import subprocess, sys, tpcourse; subprocess.run([sys.executable, '-c', 'import ipyparallel'], check=True)"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"}
    done = subprocess.run(acting(NAMES[0], sys.executable, "-c", code), env=env, cwd="/", capture_output=True)
    return f"{NAMES[0]} may not read this checkout or its Python" if done.returncode else None


WHY_NOT = why_not()
pytestmark = [pytest.mark.stage("hangs"), pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


@pytest.fixture
def homes() -> Iterator[dict[str, Path]]:
    """A home for each person, that the other cannot enter."""
    with tempfile.TemporaryDirectory(prefix="tpcourse-people-") as folder:
        os.chmod(folder, 0o755)
        found = {name: Path(folder, name) for name in NAMES}
        for name, home in found.items():
            home.mkdir(mode=0o700)
            os.chown(home, user(name) or 0, user(name) or 0)
        yield found


def started(name: str, home: Path, *words: str) -> subprocess.Popen[str]:
    """A process of this person, with nothing of ours in its environment."""
    env = {
        "HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1", "LANG": "C.UTF-8",
    }  # fmt: skip
    return subprocess.Popen(
        acting(name, sys.executable, *words), cwd=ROOT, env=env, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def processes_of(name: str) -> list[psutil.Process]:
    mine = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real == user(name) and process.status() != psutil.STATUS_ZOMBIE:
                mine.append(process)
    return mine


def test_one_person_interrupts_restarts_and_stops_and_the_other_notices_nothing(homes):
    quiet, restless = NAMES
    before = {name: {process.pid for process in processes_of(name)} for name in NAMES}
    lesson = started(quiet, homes[quiet], "-m", "tpcourse", "lesson", "01", "--timeout", str(LIMIT_S))
    try:
        assert lesson.stdout.readline().startswith("01_collectives.ipynb")
        other = started(restless, homes[restless], "-m", "tests.two_people_script")
        out, err = other.communicate(timeout=LIMIT_S)
        assert other.returncode == 0, err[-2000:]
        told = json.loads(out.strip().splitlines()[-1])
        assert set(told["first"]) == set(told["again"]) == set(told["rest"]) == {"ok"}
        assert told["stopped"] == "RanksInterrupted"
        clean = started(restless, homes[restless], "-m", "tpcourse", "doctor", "--clean", "--timeout", str(LIMIT_S))
        clean.communicate(timeout=LIMIT_S)
        assert clean.returncode == 0
        out, err = lesson.communicate(timeout=LIMIT_S)
    finally:
        lesson.kill()
    assert lesson.returncode == 0, out[-2000:] + err[-2000:]
    assert "checks passed in" in out
    for name in NAMES:
        left = [process for process in processes_of(name) if process.pid not in before[name]]
        _, alive = psutil.wait_procs(left, timeout=30)
        assert not alive, f"processes of {name} were left behind"
    assert not [path for name in NAMES for path in Path("/tmp").glob(f"tpcourse-{user(name)}-*")]


def test_the_folders_of_one_person_s_ranks_are_closed_to_the_other(homes):
    first, second = NAMES
    body = (
        "from tpcourse import start_ranks\nranks = start_ranks(1)\nprint(ranks.cluster.session.folder)\n"
        "print(ranks.cluster.session.folder / 'security' / 'ipcontroller-client.json', flush=True)\ninput()"
    )
    env = {
        "HOME": str(homes[first]),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = acting(first, sys.executable, "-c", body)
    with subprocess.Popen(words, env=env, cwd="/", text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        folder, file = (process.stdout.readline().strip() for _ in range(2))
        assert Path(file).is_file()
        for words in (["ls", folder], ["cat", file], ["touch", f"{folder}/new"]):
            done = subprocess.run(acting(second, *words), capture_output=True, text=True)
            assert done.returncode != 0 and "Permission denied" in done.stderr
        process.stdin.close()
        process.wait(LIMIT_S)
    assert not Path(folder).exists()
