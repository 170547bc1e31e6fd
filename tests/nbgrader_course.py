"""A course in nbgrader made of our solutions as they are, graded by the real package: for tests, and as a script.

python -m tests.nbgrader_course     # every lesson; prints what each student got
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.grade_cases import ROOT
from tpcourse.ranks import preload_server

ENVIRONMENT = Path(sys.prefix) / "nbgrader"
NOT_HERE = f"there is no {ENVIRONMENT}: `make test` makes it"
NAME = "course"


def is_here() -> bool:
    """Whether nbgrader's environment was made."""
    return (ENVIRONMENT / "bin" / "nbgrader").exists()


class Course:
    """A folder as nbgrader wants it, with one assignment of some of our solutions."""

    def __init__(self, root: Path, stems: list[str]) -> None:
        self.root, self.stems = root, stems
        (root / "nbgrader_config.py").write_text(f"get_config().CourseDirectory.course_id = {NAME!r}\n")
        (root / "home").mkdir()
        for stem in stems:
            self.put(f"source/{NAME}/{stem}.ipynb", (ROOT / "solutions" / f"{stem}.ipynb").read_bytes())

    def put(self, path: str, data: bytes) -> None:
        """Write a file."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes(data)

    def submit(self, student: str, stem: str, data: bytes) -> None:
        """Hand a notebook in."""
        self.put(f"submitted/{student}/{NAME}/{stem}.ipynb", data)

    def released(self, stem: str) -> bytes:
        """What students get."""
        return (self.root / "release" / NAME / f"{stem}.ipynb").read_bytes()

    def nbgrader(self, *args: str) -> str:
        """Run the real one; what it said."""
        path = os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ.get("PATH", "")])
        env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(self.root / "home")}
        command = [str(ENVIRONMENT / "bin" / "nbgrader"), *args]
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"nbgrader {' '.join(args)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stderr

    def points(self) -> dict[str, tuple[float, float]]:
        """Points and possible points of each student, as exported."""
        self.nbgrader("export", "--to", "grades.csv")
        with (self.root / "grades.csv").open(encoding="utf-8") as file:
            return {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in csv.DictReader(file)}


def main() -> None:
    """All solutions, as anna handed them in; nothing written, by ben."""
    stems = sorted(path.stem for path in (ROOT / "solutions").glob("*.ipynb"))
    place = Path(tempfile.mkdtemp(prefix="tpcourse-nbgrader-"))
    try:
        course = Course(place, stems)
        course.nbgrader("generate_assignment", NAME)
        for stem in stems:
            course.submit("anna", stem, (ROOT / "solutions" / f"{stem}.ipynb").read_bytes())
            course.submit("ben", stem, course.released(stem))
        with preload_server():
            course.nbgrader("autograde", NAME)
        points = course.points()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(f"nbgrader, lessons {', '.join(stem[:2] for stem in stems)}: {points}")
    (_, possible), (nothing, _) = points["anna"], points["ben"]
    if points["anna"] != (possible, possible) or nothing:
        sys.exit("the solutions must have every point, and the exercises as handed out none")


if __name__ == "__main__":
    if not is_here():
        sys.exit(NOT_HERE)
    main()
