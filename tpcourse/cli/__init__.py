"""The command `tpcourse`: doctor, lesson, lab, build, bench.

A command's module is imported only when that command runs, so `tpcourse --help` answers at once.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from tpcourse.cli.parser import parse


class CommandError(Exception):
    """What a command cannot do, in a sentence for the person at the terminal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 wrongly asked, 130 interrupted."""
    args = parse(argv)
    from tpcourse.home import settle_home

    settle_home()
    try:
        return importlib.import_module(f"tpcourse.cli.{args.command}").run(args)
    except CommandError as error:
        print(f"tpcourse {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:         # the reader, `head` for example, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
