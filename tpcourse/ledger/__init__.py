"""The ledger: every collective and every message of a rank, seen from inside torch.

In each rank `install()` starts it; `with ledger() as log:` catches the calls of a block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tpcourse.ledger.board import Board, board_waiting, read_board
from tpcourse.ledger.event import Event
from tpcourse.ledger.log import Log, merge

__all__ = ["Event", "Log", "board_waiting", "busy_groups", "fingerprints", "install", "learner_line", "ledger",
           "ledger_fault", "merge", "poll", "read_board", "recent", "register_cell", "reset", "reset_fingerprints",
           "set_main_thread", "uninstall", "waiting"]

_installed: list[Any] = []      # recorder and hooks: torch's operators are one per process, and so are these


def install(board: str | os.PathLike[str] | None = None) -> None:
    """Listen to every call of this process, once; `board` names a file that mirrors the last 64 calls.

    Traffic: none.
    """
    if not _installed:
        from tpcourse.ledger.hooks import Hooks
        from tpcourse.ledger.record import Recorder

        recorder = Recorder()
        _installed.extend((recorder, Hooks(recorder)))
    if board is not None:
        _recorder().board = Board(board)


def uninstall() -> None:
    """Listen no longer."""
    if _installed:
        _installed.pop().remove()
        _installed.clear()


def _recorder() -> Any:
    if not _installed:
        install()
    return _installed[0]


@contextmanager
def ledger() -> Iterator[Log]:
    """Catch the calls that this rank begins in the block, in any thread, in a `Log`. Blocks may overlap."""
    recorder = _recorder()
    log = Log(poll=recorder.pending.poll)
    recorder.logs = (*recorder.logs, log)
    try:
        yield log
    finally:
        recorder.logs = tuple(other for other in recorder.logs if other is not log)
        recorder.pending.poll()
        recorder.pending.settle()


def recent() -> list[Event]:
    """The last 256 calls of this rank, in the order in which they began."""
    poll()
    return list(_recorder().events)


def poll() -> None:
    """Look once whether unfinished calls have ended."""
    _recorder().pending.poll()


def waiting() -> dict[int, Event]:
    """Thread -> the call that it waits in now; to be asked from another thread.

    On a GPU a call that is not finished counts as waited in, by the thread that made it.
    """
    return _recorder().waiting()


def busy_groups() -> list[Any]:
    """The process groups that have a call under way: begun on this rank, and not ended."""
    poll()
    recorder = _recorder()
    calls = [call for handle in recorder.pending.handles() for call in handle.calls]
    groups = (call.group.ref() for call in [*calls, *list(recorder.blocked.values())])
    return list({id(group): group for group in groups if group is not None}.values())


def fingerprints() -> dict[tuple[Any, ...], tuple[int, int]]:
    """Key -> (calls, hash) since the last `reset_fingerprints`; ranks that agree have equal ones.

    (axis, group, copy) for the collectives of a group: operation, elements that all must agree on (of the
    whole array; 0 for all_to_all, whose pieces may differ), dtype, reduction and root, in order.
    (axis, group, copy, src, dst, tag) for the messages of one direction: elements and dtype, in order.
    """
    return _recorder().groups.fingerprints()


def reset_fingerprints() -> None:
    """Begin new fingerprints."""
    _recorder().groups.reset_fingerprints()


def reset() -> None:
    """Forget groups, numbers and calls, once the groups were torn down; open logs keep what they have."""
    _recorder().reset()


def register_cell(filename: str, number: int, shift: int = 0) -> None:
    """Name the file under which the next cell is compiled; `shift` lines of the cell stand above its code."""
    _recorder().places.register_cell(filename, number, shift)


def set_main_thread(ident: int | None) -> None:
    """Name the thread that runs cells; calls from threads without the learner's code get its line."""
    _recorder().places.main_thread = ident


def learner_line(frame: FrameType | None) -> str:
    """The learner's line that a frame stands in or was called from: "line 12", "line 4 of cell 7", or ""."""
    places = _recorder().places
    found = places.learner_frame(frame)
    return "" if found is None else places.place(found)


def ledger_fault() -> str | None:
    """The traceback of the first fault of the ledger itself, which it kept from the call; None as a rule."""
    return _recorder().fault
