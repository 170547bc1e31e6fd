"""The same submissions give the same grades: again, after kill -9, beside another grader, and without namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import grade_cases as cases
from tests.grade_cases import first, solved
from tests.grade_thirty import states
from tpcourse.grade import cage

MARK = f"36{os.getpid()}"
OUTLIVE = f"import subprocess\nsubprocess.Popen(['sleep', '{MARK}'], start_new_session=True)"


@pytest.fixture
def submissions(tmp_path: Path) -> Path:
    """A right answer beside a wrong one, a process that is to outlive its rank, and no notebook at all."""
    place = tmp_path / "in"
    place.mkdir()
    made = {
        "a": solved("gradient_norm", column_product=cases.wrong("column_product__averaged")),
        "b": solved(row_product=first(OUTLIVE, "row_product")),
    }
    for name, book in made.items():
        (place / f"{name}_05.ipynb").write_bytes(cases.to_bytes(book))
    (place / "c_05.ipynb").write_bytes(b"{")
    return place


def start(submissions: Path, out: Path, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tpcourse", "grade", str(submissions), "--out", str(out), "--jobs", "1"]
    return subprocess.Popen(command, cwd=cases.ROOT, env=os.environ | env, stderr=subprocess.PIPE, text=True)


def test_grades_are_the_same_after_a_kill_beside_another_grader_and_without_namespaces(
    submissions: Path, tmp_path: Path
) -> None:
    killed, beside = tmp_path / "killed", tmp_path / "beside"
    first_one, other = start(submissions, killed), start(submissions, beside, TPCOURSE_CAGE=cage.LIMITS)
    while not list(killed.glob("rows/*.json")) and first_one.poll() is None:
        time.sleep(0.05)
    started = psutil.Process(first_one.pid).children(recursive=True)
    first_one.send_signal(signal.SIGKILL)
    first_one.wait()
    assert psutil.wait_procs(started, timeout=60)[1] == []
    assert not (killed / "grades.csv").exists()
    again = start(submissions, killed)
    text = again.communicate()[1]
    assert again.returncode == 0 and " kept" in text.splitlines()[0], text
    assert other.communicate() and other.returncode == 0
    assert states(killed) == states(beside)
    points = {student: sum(points for _, points in results) for student, results in states(killed)}
    assert points == {"a": 1, "b": 2, "c": 0}
    assert json.loads((beside / "grades.json").read_text())["submissions"][0]["isolation"]["level"] == cage.LIMITS
    assert [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", MARK]] == []
