"""TEACHING.md: its minutes are the notebooks', its commands run, its sentences are doctor's."""

from __future__ import annotations

import ast
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tpcourse.authoring import teaching
from tpcourse.authoring.notebook import AuthoringError
from tpcourse.cli.parser import parse
from tpcourse.ranks import caps

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "TEACHING.md").read_text("utf-8")
BLOCKS = re.findall(r"^ *```(\w+)\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [line.strip() for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
LIMIT_S = 600


def blocks(kind: str) -> list[str]:
    return ["\n".join(line.removeprefix("  ") for line in text.splitlines()) for what, text in BLOCKS if what == kind]


def test_the_minutes_are_those_of_the_notebooks():
    before, after = teaching.fresh(ROOT)
    assert before == after, "run `tpcourse build`"


def test_every_lesson_and_every_exercise_stands_in_the_table():
    known = teaching.lessons(ROOT)
    for number, lesson in known.items():
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| {number} {lesson.title} |"))
        assert all(f"{name} {minutes}" in row for name, minutes in lesson.exercises.items())
    assert len(known) == len(list((ROOT / "notebooks").glob("*.ipynb")))


def test_the_plans_fit_into_their_time():
    """With breaks: half a day is four hours, one day is seven, and a week's meeting two."""
    known = teaching.lessons(ROOT)
    for plan, most in zip(teaching.PLANS[:2], (240, 420), strict=True):
        (total,) = re.findall(r"(\d+) with breaks", teaching.plan_table(plan, known))
        assert int(total) <= most
    weeks = teaching.PLANS[2].sessions
    assert len(weeks) == 5
    for _, items in weeks:
        assert sum(teaching.in_class(known[number], names) for number, names in items) <= 120


def test_minutes_are_added_up():
    known = {"01": teaching.Lesson("Sums", 40, {"first": 10, "second": 25})}
    plan = teaching.Plan("Plan", [("One", [("01", ("first",))])], at_home=True)
    assert "| One | lesson 01, first | 50 | 25 |" in teaching.plan_table(plan, known)
    assert "| 01 Sums | 40 | first 10, second 25 | 35 |" in teaching.lesson_table(known)
    long = teaching.Plan("Plan", [("One", [("01", ("first", "second"))]), ("Two", [("01", ("first", "second"))])])
    assert "In all 150 minutes, 165 with breaks of 15" in teaching.plan_table(long, known)


def test_a_notebook_that_does_not_say_its_minutes_is_named(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "01_adding.ipynb").write_text(
        '{"cells": [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# 01 Adding"}],'
        ' "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    )
    with pytest.raises(AuthoringError, match="01_adding.ipynb does not say `About 45 minutes`"):
        teaching.lessons(tmp_path)


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """An environment in which `tpcourse` is this checkout's, as in an activated .venv."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "tpcourse"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tpcourse "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}


def as_run_here(command: str) -> str:
    """Fewer people than a class, more patience and ranks than where one only teaches, no second installation."""
    command = command.replace("--room 30", "--room 2").replace("--timeout 60", f"--timeout {LIMIT_S}")
    command = command.replace("PER_PERSON=4", "PER_PERSON=400")  # other tests have ranks, too
    ready = ROOT / ".venv" / "ready"
    if command.startswith("make ") and not (ready.is_file() and ready.read_text().strip() == str(ROOT)):
        command = command.replace("make ", "make --dry-run ", 1)
    return command + (f" OPTIONS='--timeout {LIMIT_S}'" if command.startswith("make ") else "")


@pytest.mark.parametrize("command", [command for command in COMMANDS if " lab " not in command])
def test_a_command_runs(command, environment):
    done = subprocess.run(
        as_run_here(command), shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_lab_opens_and_ends(environment):
    (command,) = {command for command in COMMANDS if " lab " in command}
    with subprocess.Popen(
        f"exec {command}", shell=True, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        line = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.wait(LIMIT_S)
    assert "The course is at http://127.0.0.1:" in line


def test_every_command_in_the_text_is_one_that_exists():
    found = re.findall(r"`((?:[A-Z_]+=\S* )*tpcourse [a-z][^`]*)`", TEXT) + COMMANDS
    words = [re.sub(r"^([A-Z_]+=\S* )+", "", command).split() for command in found]
    ours = [rest for first, *rest in words if first == "tpcourse"]
    assert len(ours) > 8
    for rest in ours:
        parse(rest)


def test_the_file_with_the_cap_is_one_that_is_read(tmp_path):
    (text,) = blocks("toml")
    (tmp_path / "tpcourse.toml").write_text(text)
    assert caps.cap({}, tmp_path / "tpcourse.toml") == caps.Cap(4, str(tmp_path / "tpcourse.toml"))
    assert str(caps.FILE) in TEXT and caps.VARIABLE in TEXT


def test_pieces_of_python_can_be_executed(tmp_path, monkeypatch):
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    for text in blocks("python"):
        names = {"c": Config()}
        exec(compile(text, "TEACHING.md", "exec"), names)
        assert names["c"]
    assert names["cluster"].n == 4


def sentences() -> str:
    """Every text in the sources of doctor and of the ranks, with the parts of each f-string joined by `...`."""
    found = []
    folders = (ROOT / "tpcourse" / "cli" / "doctor", ROOT / "tpcourse" / "ranks")
    for path in (path for folder in folders for path in folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def test_what_doctor_is_quoted_with_is_what_it_says():
    table = TEXT.split("| what people see |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    quoted = [line.strip("| ").split(" | ")[1].replace("`", "") for line in table]
    said = re.sub(r"[`\s]+", " ", sentences())
    ours = [text for text in quoted if text != "all is well"]
    assert len(ours) > 8
    for text in ours:
        for piece in text.split(" ... "):
            assert piece.split(": ", 1)[-1] in said, piece


def test_files_that_it_links_to_exist():
    links = re.findall(r"\]\(([^):]+)\)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
