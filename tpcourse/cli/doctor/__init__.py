"""`tpcourse doctor`: what will work on this machine and what will not, in a few seconds.

To add a finding: a function that returns Findings, and its name in CHECKS.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict

from tpcourse.cli import CommandError
from tpcourse.cli.doctor import hardware, leftovers, probe, sharing, software, system
from tpcourse.cli.doctor.finding import Finding

CHECKS: tuple[Callable[[], Iterable[Finding]], ...] = (
    software.python,
    software.packages,
    hardware.processor,
    hardware.memory,
    hardware.graphics,
    sharing.sharing,
    system.shared_memory,
    system.host_name,
    system.loopback,
    system.home,
    system.browser,
)


def run(args: argparse.Namespace) -> int:
    """Print a line per finding; exit status 1 if something needed fails."""
    begin_s = time.monotonic()
    findings = _room(args.room) if args.room is not None else _machine(args)
    works = all(finding.level != "fail" for finding in findings)
    seconds = time.monotonic() - begin_s
    if args.json:
        print(json.dumps({"works": works, "seconds": seconds, "findings": [asdict(f) for f in findings]}))
    else:
        print("\n".join(map(str, findings)))
        print(f"\n({seconds:.0f} s)" if args.room is not None else _verdict(findings, works, seconds))
    return 0 if works else 1


def _machine(args: argparse.Namespace) -> list[Finding]:
    probing = probe.Probe(args.timeout)                           # runs while the rest is looked at
    findings = [finding for check in CHECKS for finding in check()]
    return [*findings, *leftovers.leftovers(clean=args.clean), *probing.findings()]


def _room(number: int) -> list[Finding]:
    from tpcourse.cli.doctor.room import room

    if number < 1:
        raise CommandError(f"--room {number} is no room; give the number of people, for example --room 30.")
    return list(room(number))


def _verdict(findings: list[Finding], works: bool, seconds: float) -> str:
    failed = ", ".join(finding.what for finding in findings if finding.level == "fail")
    first = "The course works here" if works else f"The course does not work here yet; see {failed}"
    return f"\n{first} ({seconds:.1f} s)."
