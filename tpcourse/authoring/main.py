"""`tpcourse build`: arguments in, one line per notebook out, an exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tpcourse.authoring.build import Result, build, failed

WORDS = {"written": "written", "unchanged": "up to date", "stale": "stale", "failed": "failed"}


def main(argv: Sequence[str] | None = None) -> int:
    """Build or check notebooks; 0: all are up to date, 1: one failed or is stale, 2: no such request."""
    args = _parser().parse_args(argv)
    execute = True if args.execute else (False if args.check else None)
    try:
        results = build(args.root, args.lessons or None, args.check, execute, style=not args.draft)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for result in results:
        print(_line(result))
    if args.check and failed(results):
        print("Rebuild with `tpcourse build`; a built notebook is never edited by hand.")
    elif any(result.state == "failed" for result in results):
        print("Nothing was written.")
    return int(failed(results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tpcourse build", description=main.__doc__, allow_abbrev=False)
    parser.add_argument("lessons", nargs="*", metavar="NN", help="numbers of lessons (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; compare with what is on disk")
    parser.add_argument("--execute", action="store_true", help="run all (else: those whose code changed)")
    parser.add_argument("--draft", action="store_true", help="build in spite of problems of style")
    parser.add_argument("--root", type=Path, default=Path(), help="folder of the course (default: this one)")
    return parser


def _line(result: Result) -> str:
    first, *rest = result.problems or [""]
    text = f"{WORDS[result.state]:10}  {result.path}" + (f": {first}" if first else "")
    return "\n".join([text, *(f"{'':12}{line}" for line in rest)])
