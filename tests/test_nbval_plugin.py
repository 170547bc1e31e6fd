"""One notebook per hole of nbval: the hole is there without the plugin and closed with it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_notebook

from tests.nbval_holes import NOTEBOOKS
from tpcourse import nbval_plugin

ROOT = Path(__file__).parents[1]
WITHOUT = ("-p", "no:tpcourse.nbval_plugin", "-p", "no:tpcourse_nbval")
LIMIT_S = 5


@dataclass
class Run:
    verdicts: dict[tuple[str, int], tuple[str, str]]  # (notebook, cell) -> (outcome, message)
    status: int
    text: str

    def outcome(self, notebook: str, cell: int) -> str:
        return self.verdicts[notebook, cell][0]

    def message(self, notebook: str, cell: int) -> str:
        return self.verdicts[notebook, cell][1]


def start(
    folder: Path, run: str, notebooks: list[str], limit_s: float, options: tuple[str, ...]
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", *options]
    command += ["--nbval-current-env", f"--nbval-cell-timeout={limit_s}", f"--junitxml={run}.xml"]
    command += ["--rootdir", str(folder), *(f"{name}.ipynb" for name in notebooks)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("PYTEST_ADDOPTS", None)
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], report: Path) -> Run:
    text, _ = process.communicate(timeout=400)
    verdicts = {}
    for case in xml.parse(report).iter("testcase") if report.exists() else ():
        kind = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if kind is None else kind.tag
        message = "" if kind is None else f"{kind.get('message')}\n{kind.text}"
        name = case.get("classname", "").split(".")[-2 if "ipynb" in case.get("classname", "") else -1]
        verdicts[name, int(case.get("name", "").split()[-1])] = (outcome, message)
    return Run(verdicts, process.returncode, text)


def write(folder: Path, notebooks: dict[str, list[Any]]) -> None:
    for name, cells in notebooks.items():
        nbformat.write(new_notebook(cells=cells), folder / f"{name}.ipynb")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The same notebooks with and without the plugin, side by side: most of the time is waiting."""
    folder = tmp_path_factory.mktemp("holes")
    write(folder, NOTEBOOKS)
    quick = ["sound", "small", "quit"]
    slow = ["deadlock", "slow", "flood"]
    plugin = ("-p", "tpcourse.nbval_plugin")
    options: dict[str, tuple[list[str], float, tuple[str, ...]]] = {
        "without": (quick, 100, ("--nbval", *WITHOUT)),
        "strict": ([*quick, "dies"], 100, ("--nbval", *plugin)),
        "lax": ([*quick, "dies"], 100, ("--nbval-lax", *plugin)),
        "lax without": (["small"], 100, ("--nbval-lax", *WITHOUT)),
        "without, slow": (["deadlock"], LIMIT_S, ("--nbval", *WITHOUT)),
        "strict, slow": (slow, LIMIT_S, ("--nbval", *plugin)),
        "lax, slow": (slow, LIMIT_S, ("--nbval-lax", *plugin)),
    }
    started = {name: start(folder, name, *some) for name, some in options.items()}
    done = {name: finish(process, folder / f"{name}.xml") for name, process in started.items()}
    for name in ("without", "strict", "lax"):
        done[name].verdicts.update(done.pop(f"{name}, slow").verdicts)
    return done


BOTH = pytest.mark.parametrize("mode", ["strict", "lax"])


@BOTH
def test_sound_cells_pass_with_cleared_updated_and_captured_outputs(runs: dict[str, Run], mode: str) -> None:
    outcomes = [runs[mode].outcome("sound", at) for at in range(9)]
    assert outcomes == ["passed"] * 7 + ["skipped", "passed"], runs[mode].text


def test_nbval_alone_does_not_understand_cleared_and_updated_outputs(runs: dict[str, Run]) -> None:
    assert [runs["without"].outcome("sound", at) for at in (3, 4)] == ["failure", "failure"]


@pytest.mark.parametrize(
    ("notebook", "at", "sentence"),
    [
        ("small", 0, "The cell raised UsageError"),
        ("small", 1, "tagged raises-exception and raised nothing"),
        ("deadlock", 1, f"took longer than its limit of {LIMIT_S} s"),
        ("quit", 0, "ended its kernel (quit or exit)"),
    ],
)
def test_a_hole_that_passes_without_the_plugin_fails_with_it(
    runs: dict[str, Run], notebook: str, at: int, sentence: str
) -> None:
    assert runs["without"].outcome(notebook, at) in ("passed", "error")  # an error afterwards: the kernel is gone
    for mode in ("strict", "lax"):
        assert runs[mode].outcome(notebook, at) == "failure"
        assert sentence in runs[mode].message(notebook, at)


def test_another_error_than_the_stored_one_fails_in_lax_mode_too(runs: dict[str, Run]) -> None:
    assert runs["lax without"].outcome("small", 3) == "passed"
    assert "The cell raised NameError, not ValueError" in runs["lax"].message("small", 3)
    assert "The cell raised NameError, not ValueError" in runs["strict"].message("small", 3)


@BOTH
def test_a_cell_that_ends_its_kernel_fails_at_once_with_a_sentence(runs: dict[str, Run], mode: str) -> None:
    assert "ended its kernel (exit, a crash, or killed)" in runs[mode].message("dies", 0)


@BOTH
@pytest.mark.parametrize(("notebook", "at"), [("deadlock", 2), ("slow", 1), ("quit", 1), ("dies", 1)])
def test_no_cell_passes_after_its_kernel_was_lost(runs: dict[str, Run], mode: str, notebook: str, at: int) -> None:
    assert runs[mode].outcome(notebook, at) == "failure"
    assert f"not run: cell {at - 1} " in runs[mode].message(notebook, at)


@BOTH
def test_a_cell_that_exceeds_its_limit_fails_and_shows_where_it_was(runs: dict[str, Run], mode: str) -> None:
    assert f"took longer than its limit of {LIMIT_S} s" in runs[mode].message("slow", 0)
    assert "time.sleep(60)" in runs[mode].message("slow", 0)
    assert "KeyboardInterrupt" in runs[mode].message("slow", 0)


@BOTH
def test_a_cell_that_prints_for_ever_and_cannot_be_interrupted_fails(runs: dict[str, Run], mode: str) -> None:
    assert f"took longer than its limit of {LIMIT_S} s" in runs[mode].message("flood", 0)


def test_an_ordinary_failure_does_not_stop_the_notebook(runs: dict[str, Run]) -> None:
    assert "The cell raised ZeroDivisionError" in runs["strict"].message("small", 2)
    assert "Cell outputs differ" in runs["strict"].message("small", 4)
    assert runs["lax"].outcome("small", 4) == "passed"
    assert runs["strict"].outcome("small", 5) == "passed"


@BOTH
def test_a_run_with_a_hole_in_it_exits_with_status_1(runs: dict[str, Run], mode: str) -> None:
    assert runs[mode].status == 1


@pytest.mark.parametrize(("given", "expected"), [(2000, 120), (7.0, 7.0), (1999.0, 1999.0)])
def test_the_limit_is_120_s_unless_the_user_gave_one(given: float, expected: float) -> None:
    option = SimpleNamespace(nbval=True, nbval_cell_timeout=given, nbval_kernel_name=None, nbval_current_env=False)
    config: Any = SimpleNamespace(
        option=option, stash={}, add_cleanup=lambda close: None, getoption=lambda name, _: getattr(option, name)
    )
    nbval_plugin.pytest_configure(config)
    assert (option.nbval_cell_timeout, option.nbval_current_env) == (expected, True)


def test_the_plugin_is_registered_once_by_entry_point_and_option_and_idle_without_nbval(tmp_path: Path) -> None:
    info = tmp_path / "site" / "tpcourse-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tpcourse\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[pytest11]\ntpcourse.nbval_plugin = tpcourse.nbval_plugin\n")
    (tmp_path / "test_one.py").write_text(
        "def test_one(pytestconfig):\n"
        "    names = [n for n, p in pytestconfig.pluginmanager.list_name_plugin() if 'tpcourse' in n and p]\n"
        "    assert names == ['tpcourse.nbval_plugin']\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command += ["-p", "tpcourse.nbval_plugin", "-p", "no:nbval", "test_one.py"]
    paths = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_project_declares_the_plugin_under_its_own_module_name() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    # Under any other name `-p tpcourse.nbval_plugin` would register the module twice, which pytest refuses.
    assert declared == {"tpcourse.nbval_plugin": "tpcourse.nbval_plugin"}
