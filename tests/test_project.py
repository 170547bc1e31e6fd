"""One list of versions, commands that exist, and the layout that the design names."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tpcourse.cli.doctor.software import NEEDED, pinned
from tpcourse.cli.parser import parse

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {canonicalize_name(name): version for name, version in pinned(ROOT / "requirements.txt").items()}
DIRECT = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]]


def test_every_line_of_the_list_is_an_exact_pin():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    assert len(lines) == len(PINS) > 50
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in lines)


def test_nbgrader_s_own_list_adds_exact_pins_to_the_list_and_changes_none():
    own = {canonicalize_name(name): version for name, version in pinned(ROOT / "requirements-nbgrader.txt").items()}
    lines = (ROOT / "requirements-nbgrader.txt").read_text().splitlines()
    assert len([line for line in lines if line and not line.startswith("#")]) == len(own) and not set(own) & set(PINS)
    (wanted,) = map(Requirement, PROJECT["optional-dependencies"]["nbgrader"])
    assert wanted.specifier.contains(own["nbgrader"])


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_pyproject_allows_the_version_that_the_list_pins(requirement):
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def test_the_list_pins_whatever_the_pinned_packages_need():
    missing = {
        f"{need.name} (for {name})"
        for name in PINS
        for text in metadata.requires(name) or []
        if (need := Requirement(text)).marker is None or need.marker.evaluate({"extra": ""})
        if canonicalize_name(need.name) not in PINS and name != "torch"     # torch pins its CUDA packages itself
    }
    assert not missing


def test_every_pinned_package_runs_on_every_python_that_the_course_allows():
    lowest = PROJECT["requires-python"].removeprefix(">=") + ".0"
    newer = {
        f"{name} {wanted}"
        for name in PINS
        if (wanted := metadata.metadata(name)["Requires-Python"]) and not SpecifierSet(wanted).contains(lowest)
    }
    assert not newer


def test_the_tests_run_with_the_pinned_versions():
    other = {name: metadata.version(name) for name in PINS if metadata.version(name).split("+")[0] != PINS[name]}
    assert not other


def test_kernels_that_break_widgets_are_excluded():
    kernel = next(requirement for requirement in DIRECT if requirement.name == "ipykernel")
    assert not any(kernel.specifier.contains(version) for version in ("7.0.0", "7.0.1"))


def test_conda_takes_the_versions_from_the_list_and_a_python_that_is_allowed():
    wanted = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = wanted["dependencies"]
    assert pip == {"pip": ["--requirement requirements.txt", "--editable ."]}
    python = next(line.split("=")[1] for line in conda if line.startswith("python="))
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python)
    assert {line.split("=")[0] for line in conda} == {"python", "pip"}, "other versions belong into the list"


def test_doctor_looks_for_what_the_course_imports():
    assert set(NEEDED) <= {requirement.name for requirement in DIRECT}


def test_the_version_is_one_number():
    from tpcourse import __version__

    assert PROJECT["version"] == __version__


@pytest.mark.parametrize("command", ["lab", "test", "doctor"])
def test_make_knows_the_commands_that_the_readme_names(command):
    assert re.search(rf"\bmake {command}\b", (ROOT / "README.md").read_text())
    done = subprocess.run(["make", "--dry-run", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_tpcourse_knows_the_commands_that_readme_and_contributing_name():
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    lines = re.findall(r"(?:^    |`)tpcourse ([a-z]+[^#`\n]*)", text, re.MULTILINE)
    assert {line.split()[0] for line in lines} == {"doctor", "lesson", "check", "grade", "lab", "build", "bench"}
    for line in lines:
        parse(line.split())         # exits with 2 if it does not know something


def test_files_that_the_readme_links_to_exist():
    links = re.findall(r"\]\(([^):]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_lessons_that_the_readme_calls_available_are_there():
    rows = re.findall(r"^\| (\d\d) \|.*\| (\w+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    available = {number for number, state in rows if state == "available"}
    assert available == {path.name[:2] for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")}


def test_every_lesson_but_the_first_has_exercise_and_solution_of_the_same_name():
    lessons = {path.name for path in (ROOT / "notebooks").glob("*.ipynb") if path.name[:2] != "00"}
    for folder in ("exercises", "solutions"):
        assert {path.name for path in (ROOT / folder).glob("*.ipynb")} == lessons


def test_the_package_imports_without_torch():
    code = "import sys, tpcourse, tpcourse.cli, tpcourse.home; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
