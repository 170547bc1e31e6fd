"""`tpcourse lesson NN`: a lesson in the terminal, cell after cell, with the words of its checks."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tpcourse.cli import CommandError
from tpcourse.cli.course import course_root, notebook, numbered, share_package


def run(args: argparse.Namespace) -> int:
    """Execute the notebook as it stands on the disk, change nothing there, and print each check."""
    path = Path(args.lesson) if args.lesson.endswith(".ipynb") else notebook(course_root(), args.lesson)
    if not path.is_file():
        raise CommandError(f"there is no notebook {path}.")
    os.environ["TPCOURSE_LIVE"] = "0"
    share_package()
    begin_s = time.monotonic()
    lesson = Lesson(path, args.timeout)
    passed = lesson.execute()
    if passed:
        print(f"{lesson.num_checks} checks passed in {time.monotonic() - begin_s:.0f} s.")
        print(exercises_of(path))
    return 0 if passed else 1


class Lesson:
    """A notebook that is executed in order and prints its checks as they come."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        import nbformat
        from jupyter_client.kernelspec import KernelSpecManager
        from jupyter_client.manager import AsyncKernelManager
        from nbclient import NotebookClient

        self.path, self.num_checks = path, 0
        self.cells = nbformat.read(path, as_version=4).cells
        book = nbformat.v4.new_notebook(cells=self.cells)
        where = {"metadata": {"path": str(path.parent.absolute())}}
        here = KernelSpecManager(kernel_dirs=[])     # this Python, not one that a file in the home calls python3
        kernel = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=here)
        self.client = NotebookClient(book, km=kernel, timeout=timeout_s, resources=where)
        self.client.widget_registry = {}    # nbclient's Output widget can swallow the reply of the cell it is in

    def execute(self) -> bool:
        """Run every cell; stop at the first that fails, and say which and why."""
        heading, shown = "", None
        print(f"{self.path.name}: {len(self.cells)} cells", flush=True)
        with self.client.setup_kernel(cleanup_kc=True, stderr=subprocess.DEVNULL):
            for index, cell in enumerate(self.cells):
                heading = heading_of(cell) or heading
                _progress(index + 1, len(self.cells))
                failure = self.fails(cell, index)
                lines = [failure] if failure else check_lines(cell)
                if lines and heading != shown:
                    print(f"\n{heading}")
                    shown = heading
                print("".join(f"  {line}\n" for line in lines), end="", flush=True)
                if failure:
                    print(f"Stopped at cell {index + 1} of {self.path.name}.", file=sys.stderr)
                    return False
                self.num_checks += is_check(cell)
        print()
        return True

    def fails(self, cell: Any, index: int) -> str | None:
        """Execute one cell; the error in words, or None when all is as it should be."""
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

        try:
            self.client.execute_cell(cell, index)
        except CellExecutionError as error:
            return f"{error.ename}: {error.evalue}".replace("\n", "\n  ")
        except CellTimeoutError:
            return f"The cell ran for more than {self.client.timeout:g} s."
        except DeadKernelError:
            return "The notebook's kernel died in this cell."
        if "raises-exception" in tags(cell) and not any(out.output_type == "error" for out in cell.outputs):
            return "This cell should have ended in an error, and did not."
        return None


def tags(cell: Any) -> list[str]:
    """The tags of a cell."""
    return cell.metadata.get("tags", [])


def is_check(cell: Any) -> bool:
    """Whether the cell is a check of a lesson or of an exercise."""
    grades = cell.metadata.get("nbgrader", {}).get("grade", False)
    return cell.cell_type == "code" and ("check" in tags(cell) or grades)


def check_lines(cell: Any) -> list[str]:
    """What a check printed, line by line; a check that is a bare assert prints nothing, and gets a word."""
    if not is_check(cell):
        return []
    texts = [out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs]
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    return lines or [f"passed: {cell.source.strip().splitlines()[-1]}"]


def heading_of(cell: Any) -> str | None:
    """The first heading of a Markdown cell."""
    lines = cell.source.splitlines() if cell.cell_type == "markdown" else []
    return next((line.lstrip("#").strip() for line in lines if line.startswith("#")), None)


def exercises_of(path: Path) -> str:
    """One sentence that says which exercises belong to a lesson."""
    import nbformat

    exercises = numbered(path.absolute().parents[1], "exercises").get(path.name[:2])
    if exercises is None or exercises == path.absolute():
        return "No exercise notebook belongs to it."
    cells = nbformat.read(exercises, as_version=4).cells
    answers = [cell for cell in cells if cell.metadata.get("nbgrader", {}).get("solution", False)]
    names = ", ".join(cell.metadata.nbgrader.grade_id for cell in answers)
    return f"Now exercises/{exercises.name}, {len(answers)} exercises: {names}."


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\rcell {done} of {of}\r", end="", file=sys.stderr, flush=True)
