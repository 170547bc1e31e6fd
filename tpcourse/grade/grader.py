"""Grade all submissions, some at a time; show how far it is; write the tables, also when it is interrupted."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tpcourse.grade import cage, pages, store
from tpcourse.grade.cage import Limits
from tpcourse.grade.find import Submission
from tpcourse.grade.nursery import nursery
from tpcourse.grade.official import Lesson
from tpcourse.grade.run import Bench, Grade, Place, grade
from tpcourse.ranks.folders import make_folder

TEMPORARY = ("/tmp", "/var/tmp", "/run/user")  # where other people's files lie, too
Tell = Callable[[int, int, Grade, bool], None]


@dataclass(frozen=True)
class Settings:
    """What a grade depends on beside the files."""

    limits: Limits = Limits()


class Grader:
    """All submissions of one call."""

    def __init__(self, root: Path, lessons: dict[str, Lesson], out: Path, settings: Settings) -> None:
        self.root, self.lessons, self.out, self.settings = root, lessons, out, settings
        self.numbers = itertools.count()
        self.lock = threading.Lock()

    def number(self) -> int:
        """Another number at each call, from any thread."""
        with self.lock:
            return next(self.numbers)

    def grade_all(self, submissions: Sequence[Submission], source: Path, jobs: int, tell: Tell) -> list[Grade]:
        """The grades in the order of the submissions; those finished by an earlier call are taken from the disk."""
        (self.out / "rows").mkdir(parents=True, exist_ok=True)
        digests = [store.digest_of(one, self.lessons, self.settings) for one in submissions]
        made: dict[int, Grade] = {}
        for place, digest in enumerate(digests):
            if kept := store.load(self.out, digest):
                made[place] = kept
                tell(len(made), len(submissions), kept, True)
        left = [place for place in range(len(submissions)) if place not in made]
        try:
            if left:
                self._grade_left(submissions, digests, left, source, jobs, made, tell)
        finally:
            grades = [made[place] for place in sorted(made)]
            store.write_tables(self.out, grades)
            pages.write_pages(self.out, grades, self.lessons)
        return grades

    def _grade_left(
        self, submissions: Sequence[Submission], digests: list[str], left: list[int], source: Path, jobs: int,
        made: dict[int, Grade], tell: Tell,
    ) -> None:  # fmt: skip
        secret = (self.root, source.absolute(), self.out.absolute(), *map(Path, TEMPORARY))
        with private_base() as base, nursery() as nest, ThreadPoolExecutor(jobs) as pool:
            where = Place(base, _hidden(), tuple(path.resolve() for path in secret))
            bench = Bench(nest, where, self.settings.limits, self.number)
            tasks = {pool.submit(self._one, submissions[place], digests[place], bench): place for place in left}
            try:
                for task in as_completed(tasks):
                    made[tasks[task]] = task.result()
                    tell(len(made), len(submissions), task.result(), False)
            except BaseException:
                for task in tasks:
                    task.cancel()
                nest.close()  # the runs end, and their threads with them
                raise

    def _one(self, submission: Submission, digest: str, bench: Bench) -> Grade:
        try:
            made = grade(submission, self.lessons, bench)
        except Exception as error:  # a fault of ours must not stop the others
            made = Grade(submission.student, submission.lesson, submission.name, "", [])
            made.fault = f"{type(error).__name__}: {error}"
        made.digest = digest
        try:
            if not made.fault:
                store.save(self.out, made)
        except Exception as error:  # a full disk, or words that no file takes
            made.fault = f"{type(error).__name__}: {error}"
        return made


def _hidden() -> tuple[Path, ...]:
    """Homes: this user's, root's and all others."""
    homes = [Path(os.path.expanduser("~")), Path("/root"), Path("/home")]
    return tuple(path.resolve() for path in homes if path.is_dir() and path.resolve() != Path("/"))


@contextmanager
def private_base() -> Iterator[Path]:
    """A folder for the runs' folders: others may pass through it, and not look."""
    folder = make_folder("grade")  # swept by the next session of any kind, if this one is killed
    try:
        folder.chmod(0o711)
        yield folder.resolve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def isolation() -> str:
    """How answers were kept apart, in a sentence."""
    if cage.level() == cage.NAMESPACES:
        return "Answers ran in namespaces of their own: no network, their own files, limits (see docs/grading.md)."
    return "This system allows no namespaces: answers had limits only. Grade untrusted classes in a container."


def progress(begin_s: float) -> Tell:
    """A line a submission, and a bar on a terminal."""

    def tell(done: int, of: int, made: Grade, kept: bool) -> None:
        possible = sum(result.possible for result in made.results)
        how = "kept" if kept else f"{made.seconds:.1f} s"
        what = made.problem or made.fault.split("\n")[0][:100] or f"{made.points:g} of {possible:g}"
        if sys.stderr.isatty():
            width = 24 * done // of
            print(f"\r\033[K{made.student}  {made.lesson}  {what}  {how}", file=sys.stderr)
            rest = (time.monotonic() - begin_s) / done * (of - done)
            print(
                f"[{'#' * width}{'.' * (24 - width)}] {done} of {of}, {rest:.0f} s left",
                end="\r",
                file=sys.stderr,
                flush=True,
            )
        else:
            print(f"{done} of {of}  {made.student}  {made.lesson}  {what}  {how}", file=sys.stderr, flush=True)

    return tell
