"""`tpcourse grade SUBMISSIONS --out DIR`: grades of a folder of notebooks."""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

from tpcourse.cli import CommandError
from tpcourse.cli.course import course_root


def run(args: argparse.Namespace) -> int:
    """Grade, and write tables and pages; what an earlier call finished is not run again."""
    from tpcourse.grade import grader, official
    from tpcourse.grade.find import find

    root, source, out = course_root(), Path(args.submissions), Path(args.out)
    try:
        lessons, submissions = official.lessons(root), find(source)
    except ValueError as error:
        raise CommandError(f"{error}.") from error
    if not submissions:
        raise CommandError(f"there is no notebook in {source}.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begin_s = time.monotonic()
    one = grader.Grader(root, lessons, out, grader.Settings(_limits(args)))
    jobs = args.jobs or max(1, (os.cpu_count() or 2) // 2)
    made = one.grade_all(submissions, source, jobs, grader.progress(begin_s))
    seconds = time.monotonic() - begin_s
    print(f"\n{len(made)} submissions in {seconds:.0f} s, {seconds / len(made):.1f} s each.")
    print(grader.isolation())
    print(f"{out / 'grades.csv'}, grades.json, grades.xml; pages: {out / 'index.html'}")
    return 1 if any(grade.fault for grade in made) else 0


def _limits(args: argparse.Namespace) -> Any:
    from tpcourse.grade.cage import Limits

    given = {"cell_s": args.cell_limit, "total_s": args.limit}
    return Limits(**{name: value for name, value in given.items() if value})
