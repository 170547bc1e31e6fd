"""Find submissions: one folder a student, files named `name_lesson.ipynb`, zips of either. No link is followed."""

from __future__ import annotations

import os
import re
import stat
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

MOST_BYTES = 20 << 20
MOST_FILES = 20_000
DEEPEST = 8
NAMED = re.compile(r"(?P<student>.+?)[_\- ]+(?P<lesson>\d\d)(?:_[A-Za-z0-9_ ()-]*)?")
LESSON = re.compile(r"(?P<lesson>\d\d)(?:[_ (-].*)?")
MOODLE = re.compile(r"_\d+_assignsubmission_\w+$")
SKIPPED = (".", "__MACOSX")


@dataclass(frozen=True)
class Submission:
    """A file: whose it is, which lesson its name says ("" if none), its bytes, or why there are none."""

    student: str
    lesson: str
    name: str
    data: bytes = field(default=b"", repr=False)
    problem: str = ""
    changed: float = 0.0
    notes: tuple[str, ...] = ()


def find(place: Path) -> list[Submission]:
    """Every student's notebook of each lesson, the newest where there are several; in the order of names.

    Raises: ValueError if there is nothing there.
    """
    if not place.exists():
        raise ValueError(f"there is no {place}")
    newest: dict[tuple[str, str], Submission] = {}
    names: dict[tuple[str, str], list[str]] = {}
    for one in _in_zip(place, ()) if place.is_file() else _in_folder(place):
        whose_it_is = one.student, one.lesson
        names.setdefault(whose_it_is, []).append(one.name)
        newest[whose_it_is] = max(newest.get(whose_it_is, one), one, key=_age)
    return [_noted(last, names[whose_it_is]) for whose_it_is, last in sorted(newest.items())]


def _age(one: Submission) -> tuple[bool, float, str]:
    """Puts the newest last; what cannot be read comes before all."""
    return not one.problem, one.changed, one.name


def _noted(last: Submission, names: list[str]) -> Submission:
    """With a note of the others, if there are any."""
    if len(names) == 1:
        return last
    others = sorted(names)
    others.remove(last.name)
    note = f"There were {len(names)} notebooks; {last.name} is the newest and was graded, not {', '.join(others)}."
    return replace(last, notes=(*last.notes, note))


def _in_folder(place: Path) -> Iterator[Submission]:
    """Walk without following links; what is not an ordinary file is told."""
    waiting: list[tuple[str, tuple[str, ...]]] = [(os.fspath(place), ())]
    seen: dict[str, int] = {}  # by whose they are: a folder of thousands hides nobody else's
    while waiting:
        folder, parts = waiting.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            name, inside = shown(entry.name), (*parts, shown(entry.name))
            seen[inside[0]] = seen.get(inside[0], 0) + 1
            if name.startswith(SKIPPED) or seen[inside[0]] > MOST_FILES:
                continue
            if entry.is_dir(follow_symlinks=False):
                if len(parts) < DEEPEST:
                    waiting.append((entry.path, inside))
            elif name.lower().endswith(".zip") and entry.is_file(follow_symlinks=False):
                yield from _in_zip(Path(entry.path), parts)
            elif name.lower().endswith(".ipynb"):
                yield _file(entry.path, inside)


def _file(path: str, parts: tuple[str, ...]) -> Submission:
    student, lesson = whose(parts)
    name = "/".join(parts)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        is_link = os.path.islink(path)
        problem = "it is a link, and links are not followed" if is_link else f"it cannot be read ({error.strerror})"
        return Submission(student, lesson, name, problem=problem)
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            return Submission(student, lesson, name, problem="it is not an ordinary file")
        if about.st_size > MOST_BYTES:
            return Submission(student, lesson, name, problem=_too_large(about.st_size))
        return Submission(student, lesson, name, file.read(MOST_BYTES), changed=about.st_mtime)


def _too_large(size: int) -> str:
    return f"it has {size:,} bytes, and {MOST_BYTES:,} are allowed: clear its outputs"


def _in_zip(path: Path, above: tuple[str, ...]) -> Iterator[Submission]:
    """The notebooks in a zip. Nothing is unpacked to the disk, so no name in it can lead anywhere."""
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist()[:MOST_FILES]:
                parts = tuple(part for part in PurePosixPath(info.filename.replace("\\", "/")).parts)
                clean = tuple(shown(part) for part in parts if part not in ("/", "..", "."))
                if not clean or not clean[-1].lower().endswith(".ipynb") or any(p.startswith(SKIPPED) for p in clean):
                    continue
                yield _entry(archive, info, (*above, *clean), len(parts) != len(clean))
    except Exception as error:  # zlib, lzma and zipfile have errors of their own
        student, lesson = whose((*above, shown(path.stem)))
        yield Submission(student, lesson, shown(path.name), problem=f"its zip cannot be read ({error})")


def _entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo, parts: tuple[str, ...], climbs: bool) -> Submission:
    student, lesson = whose(parts)
    name = "/".join(parts)
    problem = ""
    if climbs:
        problem = f"its name in the zip leads out of the folder ({info.filename})"
    elif stat.S_ISLNK(info.external_attr >> 16):
        problem = "it is a link, and links are not followed"
    elif info.file_size > MOST_BYTES:
        problem = _too_large(info.file_size)
    if problem:
        return Submission(student, lesson, name, problem=problem)
    try:
        with archive.open(info) as file:
            data = file.read(MOST_BYTES + 1)
    except Exception as error:
        return Submission(student, lesson, name, problem=f"it cannot be read in the zip ({error})")
    problem = _too_large(len(data)) if len(data) > MOST_BYTES else ""
    try:
        changed = time.mktime((*info.date_time, 0, 0, -1))
    except (ValueError, OverflowError):  # no such day
        changed = 0.0
    return Submission(student, lesson, name, b"" if problem else data, problem, changed)


def whose(parts: tuple[str, ...]) -> tuple[str, str]:
    """Student and lesson from a path: the first folder's name, else what stands before the lesson's two digits."""
    stem = parts[-1].removesuffix(".ipynb").removesuffix(".IPYNB")
    named, alone = NAMED.fullmatch(stem), LESSON.fullmatch(stem)
    lesson = alone["lesson"] if alone else named["lesson"] if named else ""
    if len(parts) > 1:
        return MOODLE.sub("", parts[0]) or parts[0], lesson
    return (named["student"] if named and not alone else stem), lesson


def shown(name: str) -> str:
    """A file's name as text that can be written anywhere."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
