"""`tpcourse check NN`: the checks of your exercises, all of them, and your progress over the course."""

import argparse
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpcourse.cli import CommandError
from tpcourse.cli.course import course_root, notebook, numbered, share_package
from tpcourse.cli.lesson import Lesson, is_check

PROGRESS = ".progress.json"
PASSED, FAILED, BLOCKED, NOT_STARTED = STATES = ("passed", "failed", "blocked", "not started")
MARKS = {PASSED: "✓", FAILED: "✗", BLOCKED: "-", NOT_STARTED: "·"}


@dataclass
class Checked:
    """One exercise: what its check said."""

    name: str
    points: float
    state: str = FAILED
    text: str = ""


def run(args: argparse.Namespace) -> int:
    """Run the notebook as it stands on the disk, every check of it, and change nothing in it."""
    import os

    root = course_root()
    if args.lesson is None:
        print(table(root, load(root)))
        return 0
    if not args.lesson[:1].isdigit():
        raise CommandError(f"{args.lesson!r} is no lesson: its number is meant, for example 05.")
    path = notebook(root, args.lesson, "exercises")
    os.environ["TPCOURSE_LIVE"] = "0"
    share_package()
    checks = Checks(path, args.timeout)
    checks.execute()
    print("\n\n".join(one.text for one in checks.found))
    progress = load(root) | {path.name[:2]: {one.name: one.state for one in checks.found}}
    save(root, progress)
    print(f"\n{table(root, progress)}")
    return 0 if all(one.state == PASSED for one in checks.found) else 1


class Checks(Lesson):
    """An exercise notebook that is run to its end, whatever fails in it."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__(path, timeout_s)
        self.found = [_of(cell) for cell in self.cells if is_check(cell)]

    def execute(self) -> bool:
        """Run every cell; whether all checks passed."""
        import subprocess

        left, lost = iter(self.found), ""
        with self.client.setup_kernel(cleanup_kc=True, stderr=subprocess.DEVNULL):
            for index, cell in enumerate(self.cells):
                failure = lost or self.fails(cell, index)
                if failure and ("kernel died" in failure or "ran for more than" in failure):
                    lost = f"Not run: before it, a cell ended the notebook. {failure}"
                if is_check(cell):
                    settle(next(left), cell, failure)
        return all(one.state == PASSED for one in self.found)


def _of(cell: Any) -> Checked:
    meta = cell.metadata.nbgrader
    return Checked(meta.grade_id.removeprefix("check_"), meta.points)


def settle(checked: Checked, cell: Any, failure: str | None) -> None:
    """Take the state from the first line of what the check said; without such a line it has failed."""
    if failure is None:
        said = "".join(out.get("text", "") for out in cell.outputs if out.get("name") == "stdout").rstrip()
    else:
        said = failure.removeprefix("CheckFailed: ").replace("\n  ", "\n")
    first = said.partition("\n")[0]
    state = next((state for state in STATES if first == f"{checked.name}: {state}"), FAILED)
    checked.state = FAILED if failure is not None and state == PASSED else state
    checked.text = said if first.startswith(f"{checked.name}: ") else f"{checked.name}: {FAILED}\n  {said}"


def load(root: Path) -> dict[str, dict[str, str]]:
    """The states of every exercise that was ever checked here, by lesson."""
    try:
        found = json.loads((root / PROGRESS).read_text("utf-8"))
        return {lesson: dict(states) for lesson, states in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def save(root: Path, progress: dict[str, dict[str, str]]) -> None:
    """Keep the states beside the notebooks; a course that cannot be written has no memory."""
    from tpcourse.authoring.build import write

    with suppress(OSError):
        write(root / PROGRESS, json.dumps(progress, indent=1, sort_keys=True).encode())


def table(root: Path, progress: dict[str, dict[str, str]]) -> str:
    """A line a lesson: how many of its exercises passed, and a mark for each."""
    lines = ["Your progress"]
    for number, names in exercises(root):
        states = progress.get(number, {})
        marks = [states.get(name, NOT_STARTED) for name in names]
        row = " ".join(MARKS.get(state, "·") for state in marks)
        lines.append(f"  {number}  {marks.count(PASSED)} of {len(names)}  {row}")
    legend = ", ".join(f"{mark} {state}" for state, mark in MARKS.items())
    return "\n".join([*lines, f"  ({legend})"])


def exercises(root: Path) -> Iterable[tuple[str, list[str]]]:
    """Each lesson's number with the names of its exercises."""
    import nbformat

    for number, path in numbered(root, "exercises").items():
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if is_check(cell)]
        yield number, [_of(cell).name for cell in cells]
