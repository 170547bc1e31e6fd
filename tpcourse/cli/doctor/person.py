"""One person of a room: starts ranks as a notebook does, and runs a lesson-01 cell at each line that it is sent."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

CELL = """from tpcourse import wire
x = torch.full((1000,), float(rank + 1), device=device)
x = wire.ring_all_reduce(x, group=world)
x = x.sum().item()"""


def timed(ranks: Any) -> float:
    """Seconds until the cell has its answer, which is checked."""
    begin_s = time.monotonic()
    ranks.run_cell(CELL)
    right = 1000.0 * sum(range(1, len(ranks) + 1))
    found = ranks["x"]
    if found != [right] * len(ranks):
        raise RuntimeError(f"the sum came out as {found}, not {right}")
    return time.monotonic() - begin_s


def say(**words: object) -> None:
    """One line for whoever runs the room."""
    print(json.dumps(words), flush=True)


def main() -> None:
    """Until standard input closes: start, then a cell for each line."""
    from tpcourse import start_ranks

    os.environ.pop("TPCOURSE_SERVER", None)  # in a room everybody has their own
    begin_s = time.monotonic()
    try:
        ranks = start_ranks(patience=120)
        say(seconds=time.monotonic() - begin_s, ranks=len(ranks), backend=ranks.backend)
        for _ in sys.stdin:
            say(seconds=timed(ranks))
        ranks.stop()
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}".splitlines()[0])


if __name__ == "__main__":
    main()
