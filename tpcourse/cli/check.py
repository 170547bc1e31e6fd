"""`tpcourse check NN`: the checks of your exercises, all of them, and your progress over the course."""

import argparse
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpcourse.authoring.nbgrader import is_answer
from tpcourse.cli import CommandError
from tpcourse.cli.course import course_root, notebook, share_package
from tpcourse.cli.lesson import Lesson, is_check
from tpcourse.progress import BLOCKED, FAILED, NOT_STARTED, PASSED, STATES, Progress, exercises, load, name_of, save

MARKS = {PASSED: "✓", FAILED: "✗", BLOCKED: "-", NOT_STARTED: "·"}
HINT = re.compile(r"<details><summary>(.*?)</summary>(.*?)</details>", re.DOTALL)


@dataclass
class Checked:
    """One exercise: what its check said, and the hints above it."""

    name: str
    points: float
    hints: list[str]
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
    if args.hint:
        print(hint(root, checks.found, args.hint))
        return 0
    checks.execute()
    progress = load(root)
    print("\n\n".join(f"{one.text}{hints_used(one, progress)}" for one in checks.found))
    progress.states[path.name[:2]] = {one.name: one.state for one in checks.found}
    save(root, progress)
    print(f"\n{table(root, progress)}")
    return 0 if all(one.state == PASSED for one in checks.found) else 1


def hint(root: Path, found: list[Checked], name: str) -> str:
    """The next hint of an exercise; how many were asked for is kept."""
    one = next((one for one in found if one.name == name), None)
    if one is None:
        raise CommandError(f"no exercise here is called {name!r}; there are {', '.join(one.name for one in found)}.")
    progress = load(root)
    used = min(progress.hints.get(name, 0) + 1, len(one.hints))
    progress.hints[name] = used
    save(root, progress)
    return f"{name}, hint {used} of {len(one.hints)}\n\n{one.hints[used - 1]}" if used else f"{name} has no hints."


def hints_used(one: Checked, progress: Progress) -> str:
    """A line, where any were asked for. What is unfolded in the notebook is nobody's business."""
    used = progress.hints.get(one.name, 0)
    return f"\n  hints used     {used} of {len(one.hints)}" if used else ""


class Checks(Lesson):
    """An exercise notebook that is run to its end, whatever fails in it."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__(path, timeout_s)
        self.found = list(_exercises(self.cells))

    def execute(self) -> bool:
        """Run every cell; whether all checks passed."""
        import subprocess

        left, lost, broken = iter(self.found), "", ""
        with self.client.setup_kernel(cleanup_kc=True, stderr=subprocess.DEVNULL):
            for index, cell in enumerate(self.cells):
                failure = lost or self.fails(cell, index)
                if not lost and failure and ("kernel died" in failure or "ran for more than" in failure):
                    lost = f"Not run: before it, a cell ended the notebook. {failure}"
                if is_check(cell):
                    settle(one := next(left), cell, failure, broken)
                    broken = ""
                    if one.state == FAILED and not lost:
                        self.define_again(index)
                elif failure and not lost:
                    broken = failure
        return all(one.state == PASSED for one in self.found)


    def define_again(self, end: int) -> None:
        """Run the cells of names above a check again: an answer may have ended a rank, which then starts without."""
        first = next((number for number, cell in enumerate(self.cells) if is_answer(cell)), end)
        for number, cell in enumerate(self.cells[:end]):
            if cell.cell_type == "code" and not is_check(cell) and (number < first or is_answer(cell)):
                self.fails(copy.deepcopy(cell), number)


def _exercises(cells: list[Any]) -> Iterator[Checked]:
    """Each check cell with the hints of the markdown since the one before it."""
    hints: list[str] = []
    for cell in cells:
        if cell.cell_type == "markdown":
            hints += [f"{title}\n{text.rstrip()}" for title, text in HINT.findall(cell.source)]
        elif is_check(cell):
            yield Checked(name_of(cell.metadata.nbgrader), cell.metadata.nbgrader.points, hints)
            hints = []


def settle(checked: Checked, cell: Any, failure: str | None, broken: str = "") -> None:
    """Take the state from the first line of what the check said; without such a line it has failed.

    broken: what a cell between this check and the one before it ended with, such as an answer that is no Python.
    """
    if failure is None:
        said = "".join(out.get("text", "") for out in cell.outputs if out.get("name") == "stdout").rstrip()
    else:
        said = failure.removeprefix("CheckFailed: ").replace("\n  ", "\n")
    first = said.partition("\n")[0]
    state = next((state for state in STATES if first == f"{checked.name}: {state}"), FAILED)
    checked.state = FAILED if failure is not None and state == PASSED else state
    checked.text = said if first.startswith(f"{checked.name}: ") else f"{checked.name}: {FAILED}\n  {said}"
    if broken and checked.state == NOT_STARTED:
        checked.state = FAILED
        checked.text = f"{checked.name}: {FAILED}\n  A cell above this check ended with an error.\n  {broken}"


def table(root: Path, progress: Progress) -> str:
    """A line a lesson: how many of its exercises passed, and a mark for each."""
    lines = ["Your progress"]
    for number, names in exercises(root).items():
        states = progress.states.get(number, {})
        marks = [states.get(name, NOT_STARTED) for name in names]
        row = " ".join(MARKS.get(state, "·") for state in marks)
        lines.append(f"  {number}  {marks.count(PASSED)} of {len(names)}  {row}")
    legend = ", ".join(f"{mark} {state}" for state, mark in MARKS.items())
    return "\n".join([*lines, f"  ({legend})"])
