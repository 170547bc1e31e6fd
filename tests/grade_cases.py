"""Submissions of lesson 05 for the tests of the grader: solutions, wrong answers, and notebooks that mean harm."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STEM = "05_columns_and_rows"
Book = dict[str, Any]


@cache
def _text(folder: str, stem: str = STEM) -> str:
    return (ROOT / folder / f"{stem}.ipynb").read_text("utf-8")


def book(folder: str = "exercises", stem: str = STEM) -> Book:
    """A fresh copy of a notebook of the course."""
    return json.loads(_text(folder, stem))


def source(cell: Any) -> str:
    return "".join(cell["source"])


def grade_id(cell: Any) -> str:
    return cell["metadata"].get("nbgrader", {}).get("grade_id", "")


def solution(name: str) -> str:
    """The right answer of an exercise, with its first line %%px."""
    return next(source(cell) for cell in book("solutions")["cells"] if grade_id(cell) == name)


def wrong(stem: str) -> str:
    """One of the wrong answers of the course."""
    return "%%px\n" + (ROOT / "tests" / "wrong_answers" / "05" / f"{stem}.py").read_text("utf-8")


def with_answers(**answers: str) -> Book:
    """The exercise notebook with these answers; what is not named stays as it was handed out."""
    made = book()
    for cell in made["cells"]:
        if grade_id(cell) in answers:
            cell["source"] = answers[grade_id(cell)]
    return made


def solved(*names: str, **others: str) -> Book:
    """The named exercises solved, and other answers."""
    return with_answers(**{name: solution(name) for name in names}, **others)


def cell_of(made: Book, name: str) -> Any:
    return next(cell for cell in made["cells"] if grade_id(cell) == name)


def to_bytes(made: Book) -> bytes:
    return json.dumps(made).encode()


def first(code: str, name: str) -> str:
    """An answer that does something as it is defined, and is right otherwise."""
    return "%%px\n" + code + "\n" + solution(name).removeprefix("%%px\n")


def when_called(code: str, name: str) -> str:
    """An answer that does something when it is called, and is right otherwise."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    wrapped = f"_right = {name}\ndef {name}(*args):\n{body}\n    return _right(*args)\n"
    return solution(name) + "\n\n" + wrapped


_MORE = "dist.all_reduce(x.clone(), group=tp)\n        ctx.tp = tp\n"
WASTEFUL = solution("column_product").replace("ctx.tp = tp\n", _MORE)
"""Right values, over budget: what an answer would want to hide."""

HIDE_CALLS = """
import contextlib
side = __import__("tpcourse." + "check.rank_side", fromlist=["ledger"])
official = side.ledger
@contextlib.contextmanager
def ledger():
    with official() as log:
        yield log
    log.events[:] = log.events[1:]
side.ledger = ledger
"""
FORGE_OUTCOME = """
there = "tpcourse." + "check."
side = __import__(there + "rank_side", fromlist=["run_case"])
Outcome, RETURNED = side.Outcome, side.RETURNED
official = __import__(there + "lesson05.column_product", fromlist=["expected"])
class Log: pass
def run_case(name, case, arguments, probe=""):
    import torch.distributed as d
    if d.get_rank() not in case.members:
        return None
    mine = case.members.index(d.get_rank())
    made = Outcome(state=RETURNED)
    made.result = list(official.expected(case, arguments)[mine])
    made.kinds, made.log, made.facts = (), None, {"own": "", "pair": "", "forward": 0}
    return made
side.run_case = run_case
"""
EVIL_PICKLE = """
import tpcourse.engine.rank as engine_rank
class Evil:
    def __reduce__(self):
        code = "import os; open(os.environ['TPCOURSE_GRADE'] + '/verdicts.jsonl', 'a').write('{}')"
        return exec, (code,)
engine_rank.portable = lambda value: Evil()
"""
PATCHES: dict[str, str] = {
    "ledger hidden": HIDE_CALLS,
    "outcome forged": FORGE_OUTCOME,
    "torch": "import torch, torch.distributed\ntorch.equal = lambda *a: True\ntorch.allclose = lambda *a, **k: True\n"
    "torch.distributed.all_reduce = lambda *a, **k: None",
    "builtins": "import builtins\nbuiltins.print = lambda *a, **k: None\nbuiltins.abs = builtins.max = lambda *a: 0",
    "pickle": EVIL_PICKLE,
}
"""What answers put in the place of tpcourse, torch and Python; more ways are in grade_cheats."""
FORK_BOMB = """
import os, time
def bomb():
    for _ in range(10_000):
        try:
            if os.fork() == 0:
                time.sleep(600)
        except OSError:
            raise RuntimeError("no more processes")
bomb()
"""
FLOOD = "for _ in range(200 if rank == 0 else 1):\n    print('y' * 1_000_000)"
FULL = "for i in range(100):\n    open(f'f{rank}-{i}', 'wb').write(b'x' * (32 << 20))"
ESCAPE = """
import os, socket, subprocess, glob
found = []
def attempt(what, call):
    try:
        found.append(f"{what}: {call()!r}"[:300])
    except BaseException as error:
        found.append(f"{what}: no ({type(error).__name__})")
"""


def reach(outside: Path, port: int, pid: int) -> str:
    """An answer that tries to leave, and tells in its error what it reached."""
    tries = [
        ("SOLUTIONS", f"lambda: os.listdir({str(ROOT / 'solutions')!r})"),
        ("TESTS", f"lambda: os.listdir({str(ROOT / 'tests')!r})"),
        ("OUTSIDE", f"lambda: open({str(outside / 'touched')!r}, 'w').write('x')"),
        ("TMP", "lambda: open('/tmp/touched-by-a-student', 'w').write('x')"),
        ("NOTES", "lambda: os.listdir(os.environ['TPCOURSE_GRADE'])"),
        ("NOTE", "lambda: open(os.environ['TPCOURSE_GRADE'] + '/verdicts.jsonl', 'a').write('{}')"),
        ("NETWORK", f"lambda: socket.create_connection(('127.0.0.1', {port}), 2)"),
        ("WORLD", "lambda: socket.create_connection(('192.0.2.1', 80), 2)"),
        ("KILL", f"lambda: os.kill({pid}, 0)"),
        ("SHADOW", "lambda: open('/etc/shadow').read()"),
        ("HOME", "lambda: os.listdir('/root')"),
        ("PACKAGE", "lambda: open(__import__('tpcourse').__file__, 'a')"),
        ("MOUNT", "lambda: subprocess.run(['mount', '-t', 'tmpfs', 'x', '/mnt'], check=True, capture_output=True)"),
    ]
    lines = "\n".join(f"attempt({what!r}, {call})" for what, call in tries)
    return "%%px\n" + ESCAPE + lines + "\nraise RuntimeError(' | '.join(found))"


Maker = Callable[[], Book]


def renamed_ids(made: Book) -> Book:
    """What an editor does that knows neither cell ids nor nbgrader."""
    for number, cell in enumerate(made["cells"]):
        cell["id"], cell["metadata"] = f"cell-{number}", {}
    return made


def old_format(made: Book) -> Book:
    """The same notebook in format 3."""
    cells = copy.deepcopy(made["cells"])
    for cell in cells:
        cell.pop("id", None)
        if cell["cell_type"] == "code":
            cell["input"] = cell.pop("source")
            cell["language"], cell["prompt_number"] = "python", None
            cell.pop("execution_count", None)
    return {
        "metadata": {"name": ""},
        "nbformat": 3,
        "nbformat_minor": 0,
        "worksheets": [{"cells": cells, "metadata": {}}],
    }
