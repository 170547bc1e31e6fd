"""Which files count as submissions, and what is read from them, before anything runs."""

from __future__ import annotations

import os
import tracemalloc
import zipfile

import pytest

from tests import grade_cases as cases
from tests.grade_thirty import NAMES
from tpcourse.grade import reading
from tpcourse.grade.find import MOST_BYTES, find, whose

BYTES = cases.to_bytes(cases.solved(*NAMES))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("anna/05_columns_and_rows.ipynb", ("anna", "05")),
        ("anna/work/05.ipynb", ("anna", "05")),
        ("anna_05.ipynb", ("anna", "05")),
        ("anna_maria_05_columns_and_rows.ipynb", ("anna_maria", "05")),
        ("anna_05_columns_and_rows (1).ipynb", ("anna", "05")),
        ("smithanna_1234_5678_05_columns_and_rows.ipynb", ("smithanna_1234_5678", "05")),
        ("Anna Smith_1234_assignsubmission_file/05_columns_and_rows.ipynb", ("Anna Smith", "05")),
        ('O\'Brien "Bo"_05.ipynb', ('O\'Brien "Bo"', "05")),
        ("anna/answers.ipynb", ("anna", "")),
        ("answers.ipynb", ("answers", "")),
    ],
)
def test_student_and_lesson_are_read_off_the_path(path, expected):
    assert whose(tuple(path.split("/"))) == expected


def test_folders_files_and_zips_are_found_and_hidden_ones_are_not(tmp_path):
    (tmp_path / "anna" / ".ipynb_checkpoints").mkdir(parents=True)
    (tmp_path / "anna" / "05.ipynb").write_bytes(BYTES)
    (tmp_path / "anna" / ".ipynb_checkpoints" / "05-checkpoint.ipynb").write_bytes(BYTES)
    (tmp_path / "ben_05.ipynb").write_bytes(BYTES)
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as archive:
        archive.writestr("Cleo_1_assignsubmission_file/05.ipynb", BYTES)
        archive.writestr("__MACOSX/Cleo/._05.ipynb", b"x")
    found = [(one.student, one.lesson, one.problem, one.data == BYTES) for one in find(tmp_path)]
    assert found == [("Cleo", "05", "", True), ("anna", "05", "", True), ("ben", "05", "", True)]
    assert [one.student for one in find(tmp_path / "class.zip")] == ["Cleo"]


def test_links_pipes_and_names_that_climb_are_told_and_never_read(tmp_path):
    place = tmp_path / "in"
    place.mkdir()
    (tmp_path / "secret_05.ipynb").write_bytes(BYTES)
    os.symlink(tmp_path / "secret_05.ipynb", place / "link_05.ipynb")
    os.symlink(tmp_path, place / "folder")
    os.mkfifo(place / "pipe_05.ipynb")
    with zipfile.ZipFile(place / "z.zip", "w") as archive:
        archive.writestr("../../climbs_05.ipynb", BYTES)
        linked = zipfile.ZipInfo("linked_05.ipynb")
        linked.external_attr = 0o120777 << 16
        archive.writestr(linked, "/etc/passwd")
    found = {one.student: one for one in find(place)}
    assert set(found) == {"link", "pipe", "climbs", "linked"}
    assert all(one.problem and not one.data for one in found.values())
    assert "link" in found["link"].problem and "link" in found["linked"].problem and "out of" in found["climbs"].problem


def test_files_that_are_too_large_or_broken_are_told(tmp_path):
    with (tmp_path / "large_05.ipynb").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 no zip")
    (tmp_path / os.fsdecode(b"caf\xe9_05.ipynb")).write_bytes(BYTES)
    found = {one.student: one for one in find(tmp_path)}
    assert "clear its outputs" in found["large"].problem and "zip cannot be read" in found["broken"].problem
    assert found["caf\ufffd"].data == BYTES


def test_of_sixty_large_notebooks_of_one_student_one_is_held_in_memory(tmp_path):
    """A small zip can hold gigabytes."""
    with zipfile.ZipFile(tmp_path / "ann_05.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(60):
            archive.writestr(f"ann/{number}/05_a.ipynb", b" " * (1 << 20))
    tracemalloc.start()
    (found,) = find(tmp_path / "ann_05.zip")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.student == "ann" and peak_bytes < 10 << 20


def test_a_damaged_zip_is_a_row_and_the_others_are_found(tmp_path):
    path = tmp_path / "mallory_05.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mallory/05.ipynb", BYTES * 9)
    data = bytearray(path.read_bytes())
    data[30 + len("mallory/05.ipynb")] = 0xFF  # the first compressed byte
    path.write_bytes(data)
    (tmp_path / "ann_05.ipynb").write_bytes(BYTES)
    ann, mallory = find(tmp_path)
    assert ann.data == BYTES and "cannot be read in the zip" in mallory.problem


def test_thousands_of_files_of_one_student_hide_nobody_else_s(tmp_path, monkeypatch):
    monkeypatch.setattr("tpcourse.grade.find.MOST_FILES", 10)
    for name in ("ann", "zed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "05.ipynb").write_bytes(BYTES)
    for number in range(20):
        (tmp_path / "zed" / f"0{number}.txt").touch()
    assert "ann" in [one.student for one in find(tmp_path)]


def test_the_date_of_a_file_in_a_zip_is_compared_with_those_of_other_files(tmp_path):
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "05.ipynb").write_bytes(BYTES)
    with zipfile.ZipFile(tmp_path / "late.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("ann/05 (1).ipynb", (1980, 1, 1, 0, 0, 0)), b"{}")
        archive.writestr(zipfile.ZipInfo("\x1b[1Abob/05.ipynb"), BYTES)
    ann, bob = find(tmp_path)
    assert ann.data == BYTES and bob.student.isprintable()


def test_the_newest_of_several_notebooks_counts_and_the_others_are_named(tmp_path):
    (tmp_path / "anna").mkdir()
    for name, when in (("05.ipynb", 1_000), ("05 (1).ipynb", 2_000)):
        (tmp_path / "anna" / name).write_bytes(BYTES)
        os.utime(tmp_path / "anna" / name, (when, when))
    (one,) = find(tmp_path)
    assert one.name == "anna/05 (1).ipynb" and "not anna/05.ipynb" in one.notes[0]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf \r\n", "the file is empty"),
        (b'{"cells": [\n', "wrong in line 2"),
        (b"[" * 100_000, "cannot be read"),
        (b"[1, 2]", "JSON and no notebook"),
        (b'{"cells": 3}', "no cells"),
        (b'{"nbformat": 4}', "no cells"),
        (bytes(range(256)), "is no notebook"),
    ],
)
def test_what_is_no_notebook_is_said_in_a_sentence(data, sentence):
    with pytest.raises(reading.Unreadable, match=sentence):
        reading.read_cells(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"cells": [null, 3, {"cell_type": "code"}, {"cell_type": [], "source": {"a": 1}, "metadata": 7}]}',
        b'{"cells": [{"cell_type": "code", "source": ["a", null, 3], "metadata": {"nbgrader": []}}]}',
        b'{"worksheets": [null, {}, {"cells": null}, {"cells": 5}, {"cells": [{"input": "x"}]}]}',
        b'{"cells": [{"cell_type": "code", "source": "\\ud800", "id": {"a": []}}]}',
    ],
)
def test_odd_cells_are_read_or_left_out_and_never_raise(data):
    for cell in reading.read_cells(data).cells:
        cell.source.encode()
