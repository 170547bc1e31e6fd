"""Style of a lesson: the beat of prose and code, the parts of an exercise, and ruff for `%%px` bodies."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

from nbformat import NotebookNode

from tpcourse.authoring import nbgrader
from tpcourse.authoring.exercise import sections
from tpcourse.authoring.notebook import AuthoringError, Cell, Notebook, to_bytes, where

MAX_LINES = 20
MAX_MEDIAN = 8
PREDICTION = re.compile(r"^my_\w+ = ")
FOLLOWS_CODE = re.compile(r"^(draw\.\w+\(|show_source\(|check\.\w+\()")
FORBIDDEN = {
    r"^\s*([%!]|%%sh|%%bash).*\b(pip|conda|apt|wget|curl)\b": "installs or downloads",
    r"^\s*(import matplotlib|from matplotlib|import pylab)|\bplt\.": "plots; that lives in tpcourse.draw",
}
RANK_NAMES = ("rank", "world_size", "device", "world", "torch", "dist", "get_ipython", "display")
PUSHED = re.compile(r"ranks\.push\(\{(.*?)\}", re.DOTALL)


def lint(notebook: Notebook) -> list[str]:
    """What is wrong with the style of a lesson, exercise or solution: one sentence each, naming the cell."""
    exercise = any("nbgrader" in cell.metadata for cell in notebook.cells)
    problems = [*_prose(notebook), *_lengths(notebook, exercise), *_forbidden(notebook)]
    return problems + (_exercises(notebook) if exercise else _frame(notebook))


def _prose(notebook: Notebook) -> list[str]:
    problems = []
    previous: Cell | None = None
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and (previous is None or previous.cell_type == "code"):
            predicted = previous is not None and PREDICTION.match(previous.source)
            shows = previous is not None and len(_lines(cell)) == 1 and FOLLOWS_CODE.match(cell.source)
            if not (predicted or shows or nbgrader.is_check(cell)):
                problems.append(f"{where(cell, index)} has no prose before it")
        previous = cell
    return problems


def _lines(cell: Cell) -> list[str]:
    return [line for line in cell.source.splitlines() if line.strip() and not line.startswith("%%px")]


def _lengths(notebook: Notebook, exercise: bool) -> list[str]:
    code = [(i, cell) for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    lengths = [len(_lines(cell)) for _, cell in code]
    problems = [
        f"{where(cell, index)} has {length} lines of code; at most {MAX_LINES}"
        for (index, cell), length in zip(code, lengths, strict=True)
        if length > MAX_LINES and not nbgrader.is_answer(cell)
    ]
    if lengths and not exercise and median(lengths) > MAX_MEDIAN:
        problems.append(f"the median code cell has {median(lengths):g} lines; at most {MAX_MEDIAN}")
    return problems


def _forbidden(notebook: Notebook) -> list[str]:
    return [
        f"{where(cell, index)} {what}"
        for index, cell in enumerate(notebook.cells)
        for pattern, what in FORBIDDEN.items()
        if cell.cell_type == "code" and re.search(pattern, cell.source, re.MULTILINE)
    ]


def _frame(notebook: Notebook) -> list[str]:
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    problems = []
    if not prose or not any("After this you can" in text for text in prose[:2]):
        problems.append('the lesson does not open with "After this you can ..."')
    if not prose or not any("You saw" in text for text in prose[-3:]):
        problems.append('the lesson does not close with "You saw ..."')
    return problems


def _exercises(notebook: Notebook) -> list[str]:
    problems = []
    for section in sections(notebook):
        answers = [cell for _, cell in section if nbgrader.is_answer(cell)]
        if not answers:
            continue
        text = "\n".join(cell.source for _, cell in section if cell.cell_type == "markdown")
        hints = text.count("<details>")
        missing = {
            "heading": text.lstrip().startswith("## "),
            "difficulty (of 3)": re.search(r"(?i)difficulty\W*[1-3]\b|[★☆]{3}", text),
            "time in minutes": re.search(r"\d+\s*min", text),
            f"two or three hints in <details>, not {hints}": hints in (2, 3),
            "closing tag for each <details>": text.count("</details>") == hints,
            "check cell": any(nbgrader.is_check(cell) for _, cell in section),
        }
        name = answers[0].metadata["nbgrader"]["grade_id"]
        problems += [f"exercise {name} has no {what}" for what, found in missing.items() if not found]
    return problems


def lint_code(notebook: Notebook, name: str, root: Path | None = None) -> list[str]:
    """What ruff finds in the bodies of the `%%px` cells, which its own notebook support skips.

    `name` is the notebook's path below `root`; it selects the root's settings. The rank's names are known.
    Raises: `AuthoringError` if ruff is not installed or does not answer.
    """
    names = json.dumps([*RANK_NAMES, *_pushed(notebook)])
    command = [sys.executable, "-m", "ruff", "check", "--no-fix", "--output-format", "json", "--config"]
    command += [f"builtins = {names}", "--ignore", "B018,E402,F704,A001", "--stdin-filename", name, "-"]
    body = to_bytes(_bodies(notebook))
    done = subprocess.run(command, input=body, capture_output=True, cwd=root, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise AuthoringError(f"ruff did not check {name}: {done.stderr.decode().strip()}")
    problems = []
    for found in json.loads(done.stdout):
        index, row = found["cell"] - 1, found["location"]["row"]
        cell = notebook.cells[index]
        problems.append(f"{where(cell, index)}, line {row}: {found['message']} ({found['code']})")
    return problems


def _bodies(notebook: Notebook) -> Notebook:
    """The notebook as ranks read it: other code cells emptied, `%%px` a comment; numbers stay."""
    ranks = copy.deepcopy(notebook)
    for cell in ranks.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = []
        if cell.source.startswith("%%px"):
            cell.source = "# " + cell.source
        else:
            cell.source = ""
    ranks.metadata = NotebookNode(language_info={"name": "python"})
    return ranks


def _pushed(notebook: Notebook) -> list[str]:
    calls = (match for cell in notebook.cells for match in PUSHED.findall(cell.source))
    return sorted({name for call in calls for name in re.findall(r"[\"'](\w+)[\"']\s*:", call)})
