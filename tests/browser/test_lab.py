"""The course as a person meets it: JupyterLab in a real browser, on the two lessons' notebooks."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import nbformat
import psutil
import pytest
from lab_page import LabPage, error_of, text_of

ROOT = Path(__file__).parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
LESSON, EXERCISE = "notebooks/01_collectives.ipynb", "exercises/01_collectives.ipynb"

pytestmark = [
    pytest.mark.stage("browser"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed on this machine"),
]


@dataclass
class Lab:
    """A running `tpcourse lab`."""

    process: subprocess.Popen[str]
    url: str
    page: LabPage
    lines: list[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A copy of the notebooks, so that no test can change the course; its name has a space and an accent."""
    folder = tmp_path_factory.mktemp("lab") / "mon cours à moi"
    for name in ("notebooks", "exercises", "solutions"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "tpcourse").mkdir()
    return folder


@pytest.fixture(scope="module")
def lab(place) -> Iterator[Lab]:
    playwright = pytest.importorskip("playwright.sync_api")
    home = place.parent / "home"
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "TPCOURSE", "XDG"))}
    env |= {"HOME": str(home), "PYTHONPATH": str(ROOT)}
    options = ["--no-browser", "--port=0", "--LabApp.expose_app_in_browser=True"]
    command = [sys.executable, "-m", "tpcourse", "lab", *options]
    process = subprocess.Popen(command, cwd=place, env=env, stderr=subprocess.PIPE, text=True)
    try:
        lines: list[str] = []
        url = address(process, lines)
        with playwright.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=BROWSER, args=FLAGS, env=env)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(30_000)
            yield Lab(process, url, LabPage(page, url), lines)
            browser.close()
    finally:
        process.kill()
        process.wait()


def address(process: subprocess.Popen[str], lines: list[str]) -> str:
    """The URL that the command prints; what it prints later goes to `lines`."""
    urls: Queue[str] = Queue()

    def read() -> None:
        for line in process.stderr:
            lines.append(line)
            if "http://127.0.0.1:" in line:
                urls.put(line.split()[-1])

    threading.Thread(target=read, daemon=True).start()
    return urls.get(timeout=60)


def answer_and_check(solution: nbformat.NotebookNode, exercise: nbformat.NotebookNode) -> tuple[int, int, str]:
    """The first exercise: where its answer goes, where its check stands, and what solves it."""
    solved = {id_of(cell): cell.source for cell in solution.cells if "nbgrader" in cell.metadata}
    marks = [cell.metadata.get("nbgrader", {}) for cell in exercise.cells]
    answer = next(index for index, mark in enumerate(marks) if mark.get("solution"))
    check = next(index for index, mark in enumerate(marks) if index >= answer and mark.get("grade"))
    return answer, check, solved[marks[answer]["grade_id"]]


def id_of(cell: nbformat.NotebookNode) -> str:
    return cell.metadata.nbgrader.grade_id


def test_lesson_01_runs_to_its_end_by_the_menu(lab):
    lab.page.open(LESSON)
    assert lab.page.page.get_by_text("Jupyter news").count() == 0, "the pop-up about news is off"
    lab.page.run_all(timeout_s=180)
    lab.page.shoot("lesson")


def test_moving_a_slider_changes_the_figure(lab):
    handle = lab.page.page.locator(".jp-OutputArea-output .noUi-handle").first
    cell = lab.page.page.locator(".jp-CodeCell", has=handle).first
    handle.scroll_into_view_if_needed()
    lab.page.shoot("slider before")
    figures = cell.locator(".jp-OutputArea img")
    lab.page.wait(lambda: figures.count() > 0, 30, "the slider has a figure")
    before = [figure.get_attribute("src") for figure in figures.all()]
    handle.focus()
    lab.page.page.keyboard.press("ArrowRight")
    lab.page.wait(
        lambda: figures.count() > 0 and [figure.get_attribute("src") for figure in figures.all()] != before,
        30, "the figure changes",
    )  # fmt: skip
    lab.page.shoot("slider after")


def test_typing_the_solution_turns_the_check_from_failed_to_passed(lab):
    solution, exercise = (nbformat.read(ROOT / path, as_version=4) for path in ("solutions/" + EXERCISE[10:], EXERCISE))
    answer, check, solved = answer_and_check(solution, exercise)
    lab.page.open(EXERCISE)
    for index in range(answer + 1):
        if exercise.cells[index].cell_type == "code":
            assert error_of(lab.page.run(index)) is None
    failed = lab.page.run(check)
    lab.page.shoot("exercise failed")
    assert error_of(failed), "the untouched exercise fails"
    lab.page.type_over(answer, solved)
    assert error_of(lab.page.run(answer)) is None
    passed = lab.page.run(check)
    lab.page.shoot("exercise passed")
    assert error_of(passed) is None
    assert text_of(passed) != text_of(failed)
    assert "passed" in text_of(passed).lower()


def test_the_terminal_stays_quiet_and_nothing_outlives_the_lab(lab):
    children = psutil.Process(lab.process.pid).children(recursive=True)
    assert len(children) > 2, "the server, kernels and ranks were running"
    lab.process.send_signal(signal.SIGINT)
    assert lab.process.wait(20) == 0
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    assert "".join(lab.lines).count("\n") == 2, "".join(lab.lines)
