"""Whatever a notebook does, the answer is a row: its honest part is graded, nothing of it is left or was reached."""

from __future__ import annotations

import os
import socket
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
KILL = "import os\nos.kill(-1, 9)"
OUTLIVE = "import subprocess, sys\nsubprocess.Popen(['sleep', '3600'], start_new_session=True)"
NOISE = "import os, warnings\nwarnings.warn('a new version')\nos.write(2, b'from C code')"


def notebooks(outside: Path, port: int) -> dict[str, cases.Book]:
    """Each has one honest answer, `gradient_norm`, after all that it does."""
    answers = {
        "ends": {
            "column_product": when_called(DEADLOCK, "column_product"),
            "row_product": when_called(EXIT, "row_product"),
            "parallel_mlp": when_called("kept = bytearray(10 << 30)", "parallel_mlp"),
            "parallel_attention": first(KILL, "parallel_attention"),
        },
        "mess": {
            "column_product": first(cases.FULL, "column_product"),
            "row_product": first(NOISE, "row_product"),
            "parallel_mlp": first(cases.FLOOD, "parallel_mlp"),
            "residual_mlp": first(cases.FORK_BOMB, "residual_mlp"),
        },
        "reach": {
            "column_product": cases.reach(outside, port, os.getpid()),
            "row_product": first(OUTLIVE, "row_product"),
        },
        "patched": {
            "column_product": f"%%px\n{cases.PATCHES['outcome forged']}\n{cases.WASTEFUL.removeprefix('%%px')}",
            "row_product": first(cases.PATCHES["pickle"], "row_product"),
        },
    }
    return {name: solved(HONEST, **others) for name, others in answers.items()}


def quiet_server() -> socket.socket:
    """A server on a port that no program is given by chance: an answer's own ranks could listen on any such number."""
    for port in range(20_000, 30_000):
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    raise AssertionError("no port is free between 20,000 and 30,000")


class Graded:
    """All of them graded at once, and what was there before and after."""

    def __init__(self, place: Path) -> None:
        self.outside, submissions, self.out = place / "outside", place / "in", place / "out"
        for folder in (self.outside, submissions):
            folder.mkdir()
        with quiet_server() as server:
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


@pytest.mark.parametrize("student", ["ends", "mess", "reach", "patched"])
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
        ("ends", "parallel_attention", "failed"),
        ("mess", "column_product", "No space left"),
        ("mess", "residual_mlp", "no more processes"),
        ("reach", "column_product", "RuntimeError"),
        ("patched", "column_product", "replaces functions of the course"),
        ("patched", "row_product", ""),  # what is found first differs
    ],
)
def test_what_a_notebook_did_is_said_and_earns_nothing(graded: Graded, student: str, name: str, sentence: str) -> None:
    state, points, text = graded.result(student, name)
    assert (state, points) == ("failed", 0) and sentence in text


def test_noise_on_stderr_and_200_mb_of_output_cost_no_point(graded: Graded) -> None:
    assert graded.result("mess", "row_product")[:2] == graded.result("mess", "parallel_mlp")[:2] == ("passed", 2)
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
