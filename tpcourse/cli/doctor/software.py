"""Python and the packages against the pinned list."""

import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tpcourse.cli import CommandError
from tpcourse.cli.course import course_root
from tpcourse.cli.doctor.finding import Finding
from tpcourse.cli.machine import version

# What the course imports, and what would break it. The versions are in requirements.txt and pyproject.toml.
NEEDED = ("torch", "ipyparallel", "ipykernel", "jupyterlab", "ipywidgets", "matplotlib", "nbclient", "nbval", "psutil")
KNOWN_BAD = {("ipykernel", "7.0.0"), ("ipykernel", "7.0.1")}


def python() -> Iterator[Finding]:
    """Python 3.11 or later."""
    text = f"{platform.python_version()}, {sys.executable}"
    good = sys.version_info >= (3, 11)
    yield Finding("ok" if good else "fail", "Python", text if good else f"{text}: 3.11 or later is needed")


def packages() -> Iterator[Finding]:
    """What is installed, against what the tests ran with."""
    missing = [name for name in NEEDED if version(name) is None]
    bad = [f"{name} {number}" for name, number in KNOWN_BAD if version(name) == number]
    if missing:
        yield Finding("fail", "packages", f"missing: {', '.join(missing)}. pip install -r requirements.txt")
    if bad:
        yield Finding("fail", "packages", f"{', '.join(bad)} does not work with ipywidgets; take a later one")
    try:
        pins = pinned(course_root() / "requirements.txt")
    except CommandError as error:
        yield Finding("warn", "course", str(error))
        return
    other = [f"{name} {found} (pinned {pin})" for name, pin in pins.items() if (found := _other(name, pin))]
    if other:
        text = f"{len(other)} of {len(pins)} are not the versions that the tests ran with; most often that is fine:\n"
        yield Finding("warn", "packages", text + "\n".join(other[:8] + ["..."] * (len(other) > 8)))
    elif not missing:
        yield Finding("ok", "packages", f"all {len(pins)} as pinned: torch {version('torch')}, "
                      f"ipyparallel {version('ipyparallel')}, JupyterLab {version('jupyterlab')}")  # fmt: skip


def pinned(path: Path) -> dict[str, str]:
    """The names and versions of a pinned list."""
    text = path.read_text() if path.is_file() else ""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", text, re.MULTILINE))


def _other(name: str, pin: str) -> str | None:
    """The installed version where it is not the pinned one; a local build (`2.13.0+cu130`) counts as its version."""
    found = version(name)
    return None if found and found.split("+")[0] == pin else found or "missing"
