"""The `%%px` magic: run a cell on every rank, or on some."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

LIVE_AFTER_S = 1.5


def register(running: Callable[[], list[Any]]) -> None:
    """Make `%px` and `%%px` ours in this notebook; outside IPython there is nothing to do."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return

    def px(line: str, cell: str | None = None) -> None:
        """Run code on the ranks: `%%px`, `%%px --targets 0,2`, or `%px statement`."""
        if not running():
            raise RuntimeError("no ranks are running: call `ranks = start_ranks()` first")
        ranks = running()[0]
        targets, rest = parse_line(line) if cell is not None else (None, line)
        source = rest if cell is None else numbered(cell)
        live = Live()
        try:
            ranks.run_cell(source, number_of_cell(shell), targets, live)
        finally:
            live.end()

    shell.register_magic_function(px, "line_cell", "px")


def number_of_cell(shell: Any) -> int:
    """The number in brackets beside the cell that runs; IPython's `execution_count` is already the next one's."""
    return len(shell.history_manager.input_hist_raw) - 1


def numbered(cell: str) -> str:
    """The body of a cell with its lines numbered as the notebook shows them: the magic is line 1."""
    return cell if cell.lstrip().startswith("%%") else "#\n" + cell


def parse_line(line: str) -> tuple[str | None, str]:
    """The options after `%%px`."""
    words = line.split()
    if not words:
        return None, ""
    if words[0] in ("--targets", "-t") and len(words) == 2:
        return words[1], ""
    if words[0].startswith("--targets=") and len(words) == 1:
        return words[0].split("=", 1)[1], ""
    raise ValueError(f"%%px does not know {line!r}; it takes --targets, as in `%%px --targets 0,2`")


def parse_targets(targets: Any, num_ranks: int) -> list[int]:
    """Rank numbers from None (all), a number, a list, or text such as "0,2" or "1-3"."""
    if targets is None or targets == "all":
        return list(range(num_ranks))
    try:
        if isinstance(targets, str):
            spans = [part.split("-") for part in targets.split(",")]
            numbers = [rank for span in spans for rank in range(int(span[0]), int(span[-1]) + 1)]
        else:
            numbers = [int(rank) for rank in (targets if hasattr(targets, "__iter__") else [targets])]
    except (ValueError, TypeError):
        raise ValueError(f"targets {targets!r}: rank numbers such as 0,2 or 1-3") from None
    if not numbers or min(numbers) < 0 or max(numbers) >= num_ranks:
        raise ValueError(f"targets {targets!r}: there are ranks 0 to {num_ranks - 1}")
    return sorted(set(numbers))


class Live:
    """While a cell runs for long: what each rank prints now, gone when the cell ends."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.on = os.environ.get("TPCOURSE_LIVE", "1") != "0"
        self.handle: Any = None

    def __call__(self, run: Any) -> None:
        if self.on and time.monotonic() - self.begin > LIVE_AFTER_S:
            from IPython.display import Pretty, display

            text = Pretty(self.text(run))
            if self.handle is None:
                self.handle = display(text, display_id=True)
            else:
                self.handle.update(text)

    def text(self, run: Any) -> str:
        """One line a rank: what it does, and the last line it printed."""
        lines = []
        for rank in run.targets:
            reply = run.replies.get(rank, {})
            place = reply.get("state", {}).get("line")
            last = (reply.get("tail") or "").rstrip().rsplit("\n", 1)[-1][-90:]
            lines.append(f"rank {rank} {run.kind(rank)}{f' at {place}' if place else ''}  {last}".rstrip())
        return "\n".join(lines)

    def end(self) -> None:
        if self.handle is not None:
            self.handle.update({}, raw=True)  # an output without data is no output
