"""Thirty submissions graded twice, the second time killed and resumed; and their time (`make grading`).

python -m tests.grade_all [NUMBER]     # only the first NUMBER submissions
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.grade_cases import ROOT, STEM
from tests.grade_thirty import states, write

MOST = 0.35  # of the time with a cluster each
PLAIN = """import ipyparallel
cluster = ipyparallel.Cluster(n=4, log_level=40)
cluster.start_cluster_sync()
from tpcourse import check, start_ranks
ranks = start_ranks(cluster=cluster)"""


def start(submissions: Path, out: Path, jobs: int = 2) -> subprocess.Popen[bytes]:
    """The command, as a teacher types it."""
    command = [sys.executable, "-m", "tpcourse", "grade", str(submissions), "--out", str(out), "--jobs", str(jobs)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(ROOT)})


def timed(submissions: Path, out: Path, jobs: int = 2) -> float:
    """Grade; the seconds it took."""
    begin_s = time.monotonic()
    if start(submissions, out, jobs).wait():
        sys.exit("the grader failed")
    return time.monotonic() - begin_s


def interrupted(submissions: Path, out: Path, after: int) -> None:
    """Grade, kill it once so many rows are there, and grade again."""
    grader = start(submissions, out)
    while len(list(out.glob("rows/*.json"))) < after and grader.poll() is None:
        time.sleep(0.1)
    grader.send_signal(signal.SIGKILL)
    grader.wait()
    print(f"killed after {len(list(out.glob('rows/*.json')))} rows")
    timed(submissions, out)


def plain_s(place: Path) -> float:
    """Seconds that nbval takes for the solution with a cluster of ipyparallel's own, which imports torch itself."""
    book = json.loads((ROOT / "solutions" / f"{STEM}.ipynb").read_text("utf-8"))
    first = next(
        cell for cell in book["cells"] if "start_ranks" in "".join(cell["source"]) and cell["cell_type"] == "code"
    )
    first["source"] = PLAIN
    path = place / "plain.ipynb"
    path.write_text(json.dumps(book), "utf-8")
    env = os.environ | {"PYTHONPATH": str(ROOT), "TPCOURSE_LIVE": "0", "IPYTHONDIR": str(place / "ipython")}
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-q", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(place), str(path)]
    begin_s = time.monotonic()
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the plain cluster failed:\n{done.stdout[-2000:]}")
    return time.monotonic() - begin_s


def ratio(place: Path, number: int = 4) -> float:
    """Seconds of a solution in a run of the grader, one at a time, over those with a cluster of its own."""
    (place / "same").mkdir()
    for name in range(number):
        shutil.copy(ROOT / "solutions" / f"{STEM}.ipynb", place / "same" / f"student{name}_05.ipynb")
    plain = [plain_s(place) for _ in range(2)]
    graded = timed(place / "same", place / "out-same", jobs=1) / number
    each = min(plain)
    print(f"{graded:.1f} s a solution graded, {each:.1f} s with a cluster of its own: ratio {graded / each:.2f}")
    return graded / each


def solutions(place: Path) -> str:
    """Grade the solution of every lesson; which of them have not every point."""
    (place / "solved").mkdir()
    for path in (ROOT / "solutions").glob("*.ipynb"):
        shutil.copy(path, place / "solved" / f"solved_{path.stem[:2]}.ipynb")
    timed(place / "solved", place / "out-solved")
    rows = json.loads((place / "out-solved" / "grades.json").read_text("utf-8"))["submissions"]
    return ", ".join(row["lesson"] for row in rows if row["points"] != row["possible"])


def main(most: int) -> None:
    """Everything; exit status 1 if a grade is not as expected, or not the same twice."""
    place = Path(tempfile.mkdtemp(prefix="tpcourse-thirty-"))
    try:
        wanted = write(place / "in", most=most)
        seconds = timed(place / "in", place / "one")
        got = {student: sum(points for _, points in results) for student, results in states(place / "one")}
        wrong = {
            student: (got.get(student), points) for student, points in wanted.items() if got.get(student) != points
        }
        print(f"{len(wanted)} submissions in {seconds:.0f} s, {seconds / len(wanted):.1f} s each; not right: {wrong}")
        interrupted(place / "in", place / "two", after=len(wanted) // 3)
        same = states(place / "one") == states(place / "two")
        print(f"the same after a kill and a second call: {same}")
        short = solutions(place)
        print(f"solutions without every point: {short or 'none'}")
        less = ratio(place) <= MOST
        print(f"at most {MOST} of a cluster each: {less}")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(bool(wrong or short) or not same)


if __name__ == "__main__":
    main(int(re.sub(r"\D", "", "".join(sys.argv[1:])) or 1000))
