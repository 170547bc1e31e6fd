"""The tree as a whole: style, types, and notebooks that are what their sources make."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.stage("style")
def test_ruff_finds_nothing_in_code_tests_and_sources_of_notebooks():
    done = run("ruff", "check", "--output-format=concise", ".")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.stage("style")
def test_ruff_reads_the_cells_that_run_on_the_ranks(tmp_path):
    bad = tmp_path / "cell.py"
    bad.write_text("# %%\n# %%px\nall_reduce_of_a_name_that_is_not_there(rank)\n")
    done = run("ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--output-format=concise", str(bad))
    assert "F821" in done.stdout
    assert done.stdout.count("F821") == 1, "the names of a rank, such as `rank`, are known"


@pytest.mark.stage("types")
def test_mypy_finds_nothing_in_the_package():
    done = run("mypy")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.stage("built notebooks")
def test_every_built_notebook_is_what_its_source_makes():
    done = run("tpcourse", "build", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
