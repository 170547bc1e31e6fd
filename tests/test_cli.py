"""The command line: what it accepts, refuses and prints."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from tpcourse import __version__
from tpcourse.cli import CommandError, course, lab, main
from tpcourse.cli import bench as bench_command
from tpcourse.cli.bench import BENCHES, Result, record, start
from tpcourse.cli.parser import parse


@pytest.fixture
def small_course(tmp_path, monkeypatch):
    """A folder that looks like the course, with a space and an accent in its name, and no notebook yet."""
    root = tmp_path / "un cours allégé"
    for folder in ("notebooks/src", "exercises", "tpcourse"):
        (root / folder).mkdir(parents=True)
    monkeypatch.chdir(root / "notebooks")
    return root


def write(path: Path, *cells: nbformat.NotebookNode) -> None:
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path)


def code(source: str, *tags: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})


def text(source: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_markdown_cell(source)


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("doctor", "lesson", "lab", "build", "bench"))


def test_help_needs_no_torch_and_no_jupyter():
    code = "import sys\nfrom tpcourse.cli.parser import parse\nparse(['doctor'])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "IPython", "ipyparallel", "matplotlib", "nbformat"} & set(done.stdout.split())


def test_version_is_the_package_s(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"tpcourse {__version__}\n"


@pytest.mark.parametrize("line", ["", "lessen 01", "lesson", "doctor --jsn", "build --chek", "bench start --fast"])
def test_what_it_does_not_know_is_exit_status_2(line, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(line.split())
    assert stop.value.code == 2
    assert capsys.readouterr().err


def test_lab_passes_on_what_it_does_not_know():
    args = parse(["lab", "--no-browser", "--lesson", "01", "--port=9000"])
    assert (args.lesson, args.rest) == ("01", ["--no-browser", "--port=9000"])


def test_lab_listens_on_loopback_and_allows_root_only_to_root(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0, raising=False)
    as_root = lab.options(Path("/course"), "notebooks/00_ranks.ipynb")
    monkeypatch.setattr("os.geteuid", lambda: 1000, raising=False)
    as_user = lab.options(Path("/course"), "notebooks/00_ranks.ipynb")
    assert "--ServerApp.ip=127.0.0.1" in as_user
    assert set(as_root) - set(as_user) == {"--allow-root"}


def test_the_course_is_found_from_a_folder_within_it(small_course):
    assert course.course_root() == small_course


def test_elsewhere_the_course_is_the_one_that_the_package_lies_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert course.course_root() == Path(__file__).parents[1]


def test_without_a_course_the_error_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tpcourse.__file__", str(tmp_path / "site" / "tpcourse" / "__init__.py"))
    with pytest.raises(CommandError, match="neither here"):
        course.course_root()


@pytest.mark.parametrize("lesson", ["1", "01", "01_collectives"])
def test_a_lesson_is_named_by_number_or_name(small_course, lesson):
    write(small_course / "notebooks" / "01_collectives.ipynb")
    assert course.notebook(small_course, lesson).name == "01_collectives.ipynb"


@pytest.mark.parametrize("lesson", ["7", "01_cost", "collectives", ""])
def test_a_lesson_that_is_not_there_is_exit_status_1_and_says_which_there_are(small_course, capsys, lesson):
    write(small_course / "notebooks" / "01_collectives.ipynb")
    assert main(["lesson", lesson]) == 1
    assert f"no lesson {lesson!r}" in (err := capsys.readouterr().err)
    assert "there are: 01" in err


def test_a_lesson_prints_its_checks_under_their_headings_and_names_its_exercises(small_course, capsys):
    cells = [text("# 01 Sums"), code("1 / 0", "raises-exception"), text("## Twos"), code("x = 2"),
             code("print('x: passed')", "check"), code("assert x == 2", "check")]  # fmt: skip
    write(small_course / "notebooks" / "01_sums.ipynb", *cells)
    answer = code("x = ...")
    answer.metadata.nbgrader = {"grade_id": "twos", "solution": True}
    write(small_course / "exercises" / "01_sums.ipynb", answer)
    assert main(["lesson", "01"]) == 0
    out = capsys.readouterr().out
    assert "\nTwos\n  x: passed\n  passed: assert x == 2\n" in out
    assert "2 checks passed" in out
    assert "1 exercises: twos" in out
    assert "01 Sums" not in out, "headings without a check are not printed"


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (code("raise ValueError('two and two are 5')"), "ValueError: two and two are 5"),
        (code("x = 1", "raises-exception"), "should have ended in an error"),
        (code("import os; os._exit(3)"), "kernel died"),
        (code("while True: pass"), "more than 2 s"),
    ],
    ids=["raises", "an expected error that never came", "the kernel dies", "never ends"],
)
def test_a_lesson_stops_at_the_cell_that_fails_and_says_which(small_course, capsys, cell, says):
    after = code("print('not reached')", "check")
    write(small_course / "notebooks" / "01_sums.ipynb", text("## Wrong"), cell, after)
    assert main(["lesson", "01", "--timeout", "2" if says == "more than 2 s" else "60"]) == 1
    out, err = capsys.readouterr()
    assert says in out
    assert "Stopped at cell 2" in err
    assert "not reached" not in out


def test_a_lesson_leaves_its_notebook_as_it_was(small_course):
    path = small_course / "notebooks" / "01_sums.ipynb"
    write(path, code("print(1)"))
    before = path.read_bytes()
    main(["lesson", "1"])
    assert path.read_bytes() == before


def test_bench_without_a_name_lists_the_names_and_an_unknown_name_is_refused_with_the_list(capsys):
    assert main(["bench"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in BENCHES)
    assert main(["bench", "speed"]) == 1
    assert "start, px, ledger" in capsys.readouterr().err


def test_bench_prints_a_table_and_with_json_one_object_as_the_last_line(capsys, monkeypatch):
    result = Result(("what", "s"), [("a", 1.5), ("longer", 0.25)], {"ratio": 6.0})
    monkeypatch.setitem(BENCHES, "fake", "a measurement")
    fake = SimpleNamespace(measure=lambda repeats: result)
    monkeypatch.setitem(sys.modules, "tpcourse.cli.bench.fake", fake)
    assert main(["bench", "fake", "--json"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert table == ["what        s", "-------------", "a       1.500", "longer  0.250"]
    assert json.loads(last) == {"bench": "fake", "ratio": 6.0}
    assert bench_command.run(parse(["bench", "fake"])) == 0
    assert "ratio" not in capsys.readouterr().out


def test_the_ratio_of_start_is_the_median_of_ours_over_the_median_of_plain():
    samples = {"ours_s": [1.0, 2.0, 9.0], "plain_s": [8.0, 4.0, 7.0], "server_s": [1.0], "again_s": [0.1]}
    result = start.summary(samples)
    assert result.figures["ratio"] == 2 / 7
    assert result.figures["ours_median_s"] == 2.0


def test_a_recording_holds_figures_and_where_they_come_from(tmp_path):
    path = record.record("fake", Result(("a",), [(1,)], {"ratio": 0.5}), tmp_path)
    content = json.loads(path.read_text())
    assert content["figures"] == {"ratio": 0.5}
    assert {"date", "command", "machine"} <= set(content)
    assert {"cards", "driver", "nccl", "processor", "cores", "torch"} <= set(content["machine"])
    assert [path.name for path in tmp_path.iterdir()] == ["fake.json"]


def test_a_recording_that_fails_leaves_the_old_one(tmp_path):
    record.record("fake", Result(("a",), [(1,)], {"ratio": 0.5}), tmp_path)
    with pytest.raises(TypeError):
        record.record("fake", Result(("a",), [(1,)], {"ratio": object()}), tmp_path)
    assert json.loads((tmp_path / "fake.json").read_text())["figures"] == {"ratio": 0.5}
    assert len(list(tmp_path.iterdir())) == 1
