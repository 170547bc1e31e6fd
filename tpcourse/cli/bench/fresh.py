"""A measurement in a Python process of its own."""

import json
import subprocess
import sys

from tpcourse.cli import CommandError


def fresh(module: str, *args: str, timeout_s: float = 120) -> dict[str, float]:
    """Run `python -m MODULE ARGS` and return the JSON object on the last line that it prints."""
    command = [sys.executable, "-m", module, *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise CommandError(f"{' '.join(command[1:])} gave no answer in {timeout_s:g} s.") from None
    if done.returncode != 0:
        raise CommandError(f"{' '.join(command[1:])} failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def progress(text: str) -> None:
    """Say on stderr what is being measured."""
    print(text, file=sys.stderr, flush=True)
