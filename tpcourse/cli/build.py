"""`tpcourse build`: from the sources to the notebooks (the work is done by tpcourse.authoring)."""

import argparse

from tpcourse.cli.course import course_root


def run(args: argparse.Namespace) -> int:
    """Build, or with `--check` compare; exit status 1 when a notebook is stale or fails."""
    from tpcourse.authoring import main

    flags = [f"--{name}" for name in ("check", "execute", "draft") if getattr(args, name)]
    return main([*args.lessons, *flags, "--root", str(course_root())])
