"""How far a learner is: what `tpcourse check` last found of every exercise, and the hints asked for."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = ".progress.json"
PASSED, FAILED, BLOCKED, NOT_STARTED = STATES = ("passed", "failed", "blocked", "not started")


@dataclass
class Progress:
    """States of exercises by lesson and name, and how many hints of an exercise were asked for."""

    states: dict[str, dict[str, str]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)


def load(root: Path) -> Progress:
    """What is kept beside the notebooks of this course; nothing, if it cannot be read."""
    try:
        found = json.loads((root / FILE).read_text("utf-8"))
        states = {lesson: dict(named) for lesson, named in found["states"].items()}
        return Progress(states, {name: int(count) for name, count in found["hints"].items()})
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return Progress()


def save(root: Path, progress: Progress) -> None:
    """Keep it; a course that cannot be written has no memory."""
    path = root / FILE
    whole = path.with_name(f"{FILE}.new")
    with suppress(OSError):
        whole.write_text(json.dumps(vars(progress), indent=1, sort_keys=True), "utf-8")
        whole.replace(path)


def exercises(root: Path) -> dict[str, list[str]]:
    """The exercises of each lesson, in their order."""
    found = {}
    for path in sorted((root / "exercises").glob("[0-9][0-9]_*.ipynb")):
        book = json.loads(path.read_text("utf-8"))
        metas = [cell["metadata"].get("nbgrader", {}) for cell in book["cells"]]
        found[path.name[:2]] = [name_of(meta) for meta in metas if meta.get("grade") and not meta.get("solution")]
    return found


def name_of(meta: dict[str, Any]) -> str:
    """The exercise that a check cell is about."""
    return meta["grade_id"].removeprefix("check_")


def progress(start: Path | None = None) -> dict[str, dict[str, str]]:
    """Lesson -> exercise -> state, for the course in whose folder a notebook lies; empty where there is none."""
    here = (start or Path.cwd()).absolute()
    root = next((folder for folder in (here, *here.parents) if (folder / "exercises").is_dir()), here)
    known = load(root).states
    return {
        lesson: {name: known.get(lesson, {}).get(name, NOT_STARTED) for name in names}
        for lesson, names in exercises(root).items()
    }
