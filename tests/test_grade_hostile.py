"""Whatever a notebook does, the answer is a row: its honest part is graded, nothing of it is left or was reached."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests import grade_cases as cases
from tests.grade_cases import first, solved, when_called
from tpcourse.grade import cage, grader, official
from tpcourse.grade.cage import Limits
from tpcourse.grade.find import find
from tpcourse.ranks.folders import folders

HONEST = "gradient_norm"
NEEDS_NAMESPACES = pytest.mark.skipif(cage.level() != cage.NAMESPACES, reason="this system allows no namespaces")
EXIT = "import os\nos._exit(0)"
DEADLOCK = "if rank == 1: return args[0]"
PATCHED = {name: f"%%px\n{code}\n{cases.WASTEFUL.removeprefix('%%px')}" for name, code in cases.PATCHES.items()}
CLEARED = cases.WASTEFUL + """
_wasteful = column_product
def column_product(*args):
    y = _wasteful(*args)
    clear()
    return y
"""
OUTLIVE = "import subprocess, sys\nsubprocess.Popen(['sleep', '3600'], start_new_session=True)"
NOISE = "import os, warnings\nwarnings.warn('a new version')\nos.write(2, b'from C code')"


def notebooks(outside: Path, port: int) -> dict[str, cases.Book]:
    """Each has one honest answer, `gradient_norm`, after all that it does."""
    answers = {
        "ends": {
            "column_product": when_called(DEADLOCK, "column_product"),
            "row_product": when_called(EXIT, "row_product"),
            "parallel_mlp": when_called("kept = bytearray(10 << 30)", "parallel_mlp"),
        },
        "loops": {"column_product": when_called("while True: pass", "column_product")},
        "killer": {"column_product": first("import os\nos.kill(-1, 9)", "column_product")},
        "bomb": {"residual_mlp": first(cases.FORK_BOMB, "residual_mlp")},
        "flood": {"column_product": first(cases.FLOOD, "column_product")},
        "full": {"column_product": first(cases.FULL, "column_product")},
        "reach": {
            "column_product": cases.reach(outside, port, os.getpid()),
            "row_product": first(OUTLIVE, "row_product"),
        },
        "ledger cleared": {"column_product": f"%%px\n{cases.CLEAR_LEDGER}\n{CLEARED.removeprefix('%%px')}"},
        "noise": {"column_product": first(NOISE, "column_product")},
        **{name: {"column_product": text} for name, text in PATCHED.items()},
    }
    return {name: solved(HONEST, **others) for name, others in answers.items()}


class Graded:
    """All of them graded at once, and what was there before and after."""

    def __init__(self, place: Path) -> None:
        self.outside, submissions, self.out = place / "outside", place / "in", place / "out"
        for folder in (self.outside, submissions):
            folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as server:
            for name, made in notebooks(self.outside, server.getsockname()[1]).items():
                (submissions / f"{name}_05.ipynb").write_bytes(cases.to_bytes(made))
            before = set(psutil.pids())
            settings = grader.Settings(Limits(total_s=1800))
            lessons = official.lessons(cases.ROOT)
            one = grader.Grader(cases.ROOT, lessons, self.out, settings)
            made = one.grade_all(find(submissions), submissions, 2, lambda *told: None)
            server.settimeout(0)
            with suppress(BlockingIOError):
                server.accept()
                raise AssertionError("an answer reached a server of this machine")
        self.grades = {grade.student: grade for grade in made}
        self.left = [pid for pid in psutil.Process().children(recursive=True) if pid.pid not in before]

    def result(self, student: str, name: str) -> tuple[str, float, str]:
        found = next(result for result in self.grades[student].results if result.name == name)
        return found.state, found.points, " ".join(f"{found.feedback}\n{found.why}".split())


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Graded:
    return Graded(tmp_path_factory.mktemp("hostile"))


NAMES = ["ledger cleared", "ends", "loops", "killer", "flood", "full", "reach", "noise", *cases.PATCHES]


@pytest.mark.parametrize("student", NAMES)
def test_the_honest_answer_of_a_hostile_notebook_has_its_point(graded: Graded, student: str) -> None:
    assert graded.grades[student].fault == ""
    state, points, text = graded.result(student, HONEST)
    assert (state, points) == ("passed", 1), text


@pytest.mark.parametrize(
    ("student", "name", "sentence"),
    [
        ("ends", "column_product", "rank 1 never called"),
        ("ends", "row_product", "died: exit code 0"),
        ("ends", "parallel_mlp", "MemoryError"),
        ("loops", "column_product", "is there a loop that does not end?"),
        ("killer", "column_product", "failed"),
        ("bomb", "residual_mlp", "no more processes"),
        ("full", "column_product", "No space left"),
        ("reach", "column_product", "RuntimeError"),
        ("ledger cleared", "column_product", "made more calls than the ledger"),
    ],
)
def test_what_a_notebook_did_is_said(graded: Graded, student: str, name: str, sentence: str) -> None:
    state, points, text = graded.result(student, name)
    assert (state, points) == ("failed", 0) and sentence in text


@pytest.mark.parametrize("student", cases.PATCHES)
def test_replaced_functions_earn_nothing_for_an_answer_over_budget(graded: Graded, student: str) -> None:
    state, points, text = graded.result(student, "column_product")
    assert (state, points) == ("failed", 0), text


@pytest.mark.parametrize("student", ["ledger hidden", "outcome forged", "torch"])
def test_replaced_functions_are_named(graded: Graded, student: str) -> None:
    assert "replaces functions of the course" in graded.result(student, "column_product")[2]


def test_noise_on_stderr_and_200_mb_of_output_cost_no_point(graded: Graded) -> None:
    assert graded.result("noise", "column_product")[:2] == graded.result("flood", "column_product")[:2] == ("passed", 2)
    assert sum(path.stat().st_size for path in graded.out.rglob("*") if path.is_file()) < 5_000_000


@NEEDS_NAMESPACES
def test_an_answer_reaches_no_file_no_process_and_no_network(graded: Graded) -> None:
    text = graded.result("reach", "column_product")[2]
    tried = ["SOLUTIONS", "TESTS", "OUTSIDE", "TMP", "NOTES", "NOTE", "NETWORK", "WORLD", "KILL", "PACKAGE", "MOUNT"]
    assert [name for name in tried if f"{name}: no (" not in text] == [], text
    assert list(graded.outside.iterdir()) == [] and not Path("/tmp/touched-by-a-student").exists()


def test_nothing_is_left_running_and_no_folder_stays(graded: Graded) -> None:
    assert graded.left == []
    assert [folder for folder, pid, _ in folders() if "-grade-" in folder.name and pid == os.getpid()] == []


def start(submissions: Path, out: Path, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tpcourse", "grade", str(submissions), "--out", str(out), "--jobs", "1"]
    return subprocess.Popen(command, cwd=cases.ROOT, env=os.environ | env, stderr=subprocess.PIPE, text=True)


def states(out: Path) -> list[tuple[str, list[tuple[str, float]]]]:
    rows = json.loads((out / "grades.json").read_text())["submissions"]
    return [(row["student"], [(result["state"], result["points"]) for result in row["results"]]) for row in rows]


def test_a_grader_that_was_killed_goes_on_and_one_beside_it_is_not_disturbed(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for name in ("a", "b", "c"):
        (place / f"{name}_05.ipynb").write_bytes(cases.to_bytes(solved(HONEST)))
    killed, beside = start(place, tmp_path / "one"), start(place, tmp_path / "two")
    end = time.monotonic() + 600
    while not list((tmp_path / "one").glob("rows/*.json")) and time.monotonic() < end:
        time.sleep(0.05)
    started = psutil.Process(killed.pid).children(recursive=True)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert psutil.wait_procs(started, timeout=60)[1] == []
    assert not (tmp_path / "one" / "grades.csv").exists()
    again = start(place, tmp_path / "one")
    text = again.communicate(timeout=900)[1]
    assert again.returncode == 0 and " kept" in text.splitlines()[0], text
    assert beside.communicate(timeout=900) and beside.returncode == 0
    assert states(tmp_path / "one") == states(tmp_path / "two")
    assert [sum(points for _, points in results) for _, results in states(tmp_path / "one")] == [1, 1, 1]


def test_where_namespaces_are_not_allowed_limits_are_left_and_nothing_outlives_a_run(tmp_path: Path) -> None:
    place, mark = tmp_path / "in", f"36{os.getpid()}"
    place.mkdir()
    outlive = first(OUTLIVE.replace("3600", mark), "column_product")
    (place / "a_05.ipynb").write_bytes(cases.to_bytes(solved(HONEST, column_product=outlive)))
    process = start(place, tmp_path / "out", TPCOURSE_CAGE=cage.LIMITS)
    text = process.communicate(timeout=900)[1]
    assert process.returncode == 0 and "3 of 15" in text, text
    made = json.loads((tmp_path / "out" / "grades.json").read_text())["submissions"][0]
    assert made["isolation"]["level"] == cage.LIMITS
    assert [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", mark]] == []
