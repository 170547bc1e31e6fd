"""Thirty mixed submissions of lesson 05 and what must come out of them; grade_all grades them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests import grade_cases as cases
from tests.grade_cases import ROOT, Book, first, solved, when_called, with_answers, wrong

POINTS = {
    "column_product": 2, "row_product": 2, "parallel_mlp": 2, "parallel_attention": 3, "vocabulary_loss": 3,
    "gradient_norm": 1, "residual_mlp": 2,
}  # fmt: skip
NAMES = tuple(POINTS)
ALL = sum(POINTS.values())
NOT_THERE = b""


def wrong_answers() -> list[dict[str, str]]:
    """Every wrong answer of lesson 05, one for each exercise in each of the dicts."""
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    for path in sorted((ROOT / "tests" / "wrong_answers" / "05").glob("*.py")):
        found[path.stem.split("__")[0]].append(path.stem)
    most = max(map(len, found.values()))
    return [{name: wrong(stems[i]) for name, stems in found.items() if i < len(stems)} for i in range(most)]


def rewritten_stdout(made: Book) -> Book:
    """Outputs pasted from the solution."""
    for cell, official in zip(made["cells"], cases.book("solutions")["cells"], strict=True):
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = official["outputs"], official["execution_count"]
    return made


def edited_checks(made: Book) -> Book:
    """Check cells that say what the official ones say when an answer is right."""
    for cell, official in zip(made["cells"], cases.book("solutions")["cells"], strict=True):
        if cases.grade_id(cell).startswith("check_"):
            cell["source"] = f"print({''.join(official['outputs'][0]['text'])!r}, end='')"
    return made


def duplicated(made: Book) -> Book:
    """Each answer cell twice, the first time untouched."""
    official = cases.book()["cells"]
    answers = [cell for cell in official if cell["metadata"].get("nbgrader", {}).get("solution")]
    made["cells"] = answers + made["cells"]
    return made


def reordered(made: Book) -> Book:
    made["cells"].reverse()
    return made


def deleted(made: Book, name: str) -> Book:
    made["cells"] = [cell for cell in made["cells"] if cases.grade_id(cell) != name]
    return made


def no_px(name: str, code: str) -> str:
    """An answer for the notebook's kernel, which would have the check in its hands."""
    return code + "\n" + cases.solution(name).removeprefix("%%px\n").replace("@staticmethod", "")


KERNEL = "from tpcourse import check\ncheck.exercise = lambda *a: print('column_product: passed')"
QUOTED = "%%px {__import__('os').system('touch /tmp/tpcourse-escaped')}\n" + cases.solution("column_product")[5:]


def right() -> dict[str, bytes]:
    """Submissions that get every point, whatever editor they went through."""
    windows = cases.to_bytes(solved(*NAMES)).replace(b"\\n", b"\\r\\n")
    kernel = solved(*NAMES)
    kernel["metadata"]["kernelspec"] = {"name": "no-such-kernel", "display_name": "Julia", "language": "julia"}
    noise = "import os, warnings\nwarnings.warn('a new version')\nos.write(2, b'from C code')"
    noisy = solved(*NAMES[1:], column_product=first(noise, "column_product"))
    return {
        "anna/05_columns_and_rows.ipynb": (ROOT / "solutions" / f"{cases.STEM}.ipynb").read_bytes(),
        "ids/05_columns_and_rows.ipynb": cases.to_bytes(cases.renamed_ids(solved(*NAMES))),
        "format3_05.ipynb": cases.to_bytes(cases.old_format(solved(*NAMES))),
        "windows_05.ipynb": windows,
        "kernel_05.ipynb": cases.to_bytes(kernel),
        'O\'Brien "Bo" Zoë_05_columns_and_rows.ipynb': cases.to_bytes(solved(*NAMES)),
        "twice_05.ipynb": cases.to_bytes(duplicated(solved(*NAMES))),
        "order_05.ipynb": cases.to_bytes(reordered(solved(*NAMES))),
        "noisy_05.ipynb": cases.to_bytes(noisy),
    }


def hostile() -> dict[str, tuple[Book, int]]:
    """Notebooks that mean harm, with the points that their honest part earns."""
    rest = ("gradient_norm", "residual_mlp")
    pasted = rewritten_stdout(edited_checks(cases.book()))
    return {
        "pasted": (pasted, 0),
        "deadlock": (solved(*rest, column_product=when_called("if rank == 1: return args[0]", "column_product")), 3),
        "loop": (solved(*rest, column_product=when_called("while True: pass", "column_product")), 3),
        "exit": (solved(*rest, column_product=when_called("import os\nos._exit(0)", "column_product")), 3),
        "killer": (solved(*rest, column_product=first("import os\nos.kill(-1, 9)", "column_product")), 3),
        "memory": (solved(*rest, column_product=when_called("kept = bytearray(10 << 30)", "column_product")), 3),
        "flood": (solved(*rest, column_product=first(cases.FLOOD, "column_product")), 5),
        "deleted": (deleted(solved(*NAMES), "row_product"), ALL - 2),
        "kernel-side": (with_answers(column_product=no_px("column_product", KERNEL)), 0),
        "quoted": (with_answers(column_product=QUOTED), 0),
        **{
            f"patch {number}": (
                solved(*rest, column_product=f"%%px\n{patch}\n{cases.WASTEFUL.removeprefix('%%px')}"),
                3,
            )
            for number, patch in enumerate(cases.PATCHES.values())
        },
    }


def unreadable() -> dict[str, bytes]:
    """Files that are no notebook of lesson 05: a row each, and no point."""
    other = (ROOT / "solutions" / "04_data_parallel.ipynb").read_bytes()
    return {"empty_05.ipynb": NOT_THERE, "json_05.ipynb": b'{"cells": [', "other_05.ipynb": other}


def write(folder: Path, num_wrong: int = 3, most: int = 1000) -> dict[str, int]:
    """Write them to a folder, or the first so many; returns the points that each student must get."""
    wanted: dict[str, int] = {}
    files: dict[str, bytes] = {**right(), **unreadable()}
    for name in files:
        student = name.split("/")[0] if "/" in name else name.split("_05")[0]
        wanted[student] = ALL if name in right() else 0
    for name, (made, points) in hostile().items():
        files[f"{name}_05.ipynb"], wanted[name] = cases.to_bytes(made), points
    for number, answers in enumerate(wrong_answers()[:num_wrong]):
        files[f"wrong {number}_05.ipynb"] = cases.to_bytes(with_answers(**answers))
        wanted[f"wrong {number}"] = 0
    for name, data in list(files.items())[:most]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    os.symlink("/etc/hostname", folder / "link_05.ipynb")
    return {**dict(list(wanted.items())[:most]), "link": 0}


def states(out: Path) -> list[tuple[str, list[tuple[str, float]]]]:
    """What each student got for each exercise."""
    rows = json.loads((out / "grades.json").read_text("utf-8"))["submissions"]
    return [(row["student"], [(result["state"], result["points"]) for result in row["results"]]) for row in rows]
