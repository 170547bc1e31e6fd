"""What may be typed after `tpcourse`."""

import argparse
from collections.abc import Sequence

from tpcourse import __version__


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; `args.command` names the module of `tpcourse.cli` that runs it."""
    parser = argparse.ArgumentParser(
        prog="tpcourse", description="A course on multi-GPU training, on real ranks.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"tpcourse {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for add in (_doctor, _lesson, _check, _grade, _lab, _build, _bench):
        add(commands)
    args, rest = parser.parse_known_args(argv)
    if rest and args.command != "lab":
        parser.error(f"{args.command} does not know {' '.join(rest)}")
    args.rest = rest
    return args


def _add(commands: "argparse._SubParsersAction", name: str, text: str, more: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}. {more}", allow_abbrev=False)


def _doctor(commands: "argparse._SubParsersAction") -> None:
    more = "Exit status 1 if something that the course needs fails."
    parser = _add(commands, "doctor", "says what will work on this machine and what will not", more)
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the lines")
    parser.add_argument("--timeout", type=float, default=8, metavar="S", help="seconds for the ranks (default 8)")
    parser.add_argument("--room", type=int, metavar="N", help="start N people's ranks: how many does it carry?")
    parser.add_argument("--clean", action="store_true", help="end processes that a dead notebook of yours left behind")


def _lesson(commands: "argparse._SubParsersAction") -> None:
    more = "Needs no browser. Exit status 1 if a cell fails."
    parser = _add(commands, "lesson", "runs a lesson here in the terminal and prints its checks", more)
    parser.add_argument("lesson", metavar="NN", help="the lesson's number, or the path of a notebook of your own")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds for one cell (default 600)")


def _check(commands: "argparse._SubParsersAction") -> None:
    more = "The same checks as in the notebook. Exit status 1 unless all have passed."
    parser = _add(commands, "check", "checks your exercises of a lesson, and shows your progress", more)
    parser.add_argument("lesson", nargs="?", metavar="NN", help="the lesson's number (default: progress only)")
    parser.add_argument("--hint", metavar="EXERCISE", help="print the next hint of an exercise, and run nothing")
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="seconds for one cell (default 120)")


def _grade(commands: "argparse._SubParsersAction") -> None:
    more = "Finished grades are kept in DIR: run it again after an interruption, and it goes on."
    parser = _add(commands, "grade", "grades a folder of submissions", more)
    parser.add_argument("submissions", metavar="SUBMISSIONS", help="a folder, or a zip, of notebooks")
    parser.add_argument("--out", required=True, metavar="DIR", help="where grades and pages are written")
    parser.add_argument("--jobs", type=int, metavar="N", help="submissions at a time (default: half the cores)")
    parser.add_argument("--limit", type=float, metavar="S", help="seconds for one submission (default 600)")
    parser.add_argument("--cell-limit", type=float, metavar="S", help="seconds for one cell (default 60)")


def _lab(commands: "argparse._SubParsersAction") -> None:
    more = "Other options go to JupyterLab, for example --no-browser or --port 9000."
    parser = _add(commands, "lab", "opens the course in JupyterLab, on lesson 00", more)
    parser.add_argument("--lesson", metavar="NN", default="00", help="open this lesson (default 00)")


def _build(commands: "argparse._SubParsersAction") -> None:
    more = "With --check nothing is written and a stale notebook is exit status 1."
    parser = _add(commands, "build", "builds lessons, exercises and solutions from their sources", more)
    parser.add_argument("lessons", nargs="*", metavar="NN", help="lesson numbers (default: all)")
    parser.add_argument("--check", action="store_true", help="only say which notebooks are stale")
    parser.add_argument("--execute", action="store_true", help="run all; else those whose code changed are run")
    parser.add_argument("--draft", action="store_true", help="build in spite of problems of style")


def _bench(commands: "argparse._SubParsersAction") -> None:
    parser = _add(commands, "bench", "measures something on this machine", "Without a name: the list of names.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to measure")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--record", action="store_true", help="write tpcourse/recordings/NAME.json")
    parser.add_argument("--repeats", type=int, metavar="N", help="samples of each variant")
