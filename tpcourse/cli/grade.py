"""`tpcourse grade SUBMISSIONS --out DIR`: grades of a folder of notebooks."""

import argparse
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from tpcourse.cli import CommandError
from tpcourse.cli.course import course_root


def run(args: argparse.Namespace) -> int:
    """Grade, and write tables and pages; what an earlier call finished is not run again."""
    from tpcourse.grade import grader, official
    from tpcourse.grade.cage import Limits
    from tpcourse.grade.find import find

    root, source, out = course_root(), Path(args.submissions), Path(args.out)
    limits = Limits()
    if args.cell_limit:
        limits = replace(limits, cell_s=args.cell_limit)
    if args.limit:
        limits = replace(limits, total_s=args.limit)
    try:
        lessons, submissions = official.lessons(root), find(source)
    except ValueError as error:
        raise CommandError(f"{error}.") from error
    if not submissions:
        raise CommandError(f"there is no notebook in {source}.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begin_s = time.monotonic()
    settings = grader.Settings(limits)
    jobs = args.jobs or max(1, (os.cpu_count() or 2) // 2)
    made = grader.Grader(root, lessons, out, settings).grade_all(submissions, source, jobs, grader.progress(begin_s))
    seconds = time.monotonic() - begin_s
    ran = [one for one in made if not one.problem]
    print(f"\n{len(made)} submissions in {seconds:.0f} s, {seconds / max(1, len(made)):.1f} s each ({len(ran)} were run).")
    print(grader.isolation(made))
    print(f"{out / 'grades.csv'}, grades.json, grades.xml; pages: {out / 'index.html'}")
    return 1 if any(one.fault for one in made) else 0
