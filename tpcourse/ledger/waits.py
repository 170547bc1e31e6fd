"""Who waits for which call, told as it happens: for the order of a program, which no clock shows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from tpcourse import ledger
from tpcourse.ledger.event import Event


@contextmanager
def noting_waits(note: Callable[[Any], bool | None], *, any_thread: bool = False) -> Iterator[None]:
    """In the block, `note(work)` is called before this thread (or any) waits for a work; if it says True, nobody waits.

    Trap: on gloo a second wait for the same message waits for another message.
    """
    before, mine = dist.Work.wait, threading.get_ident()

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        if (any_thread or threading.get_ident() == mine) and note(work):
            return True
        return before(work, *args, **kwargs)

    _replace_wait(wait)
    try:
        yield
    finally:
        if dist.Work.wait is wait:  # else a later block replaced it, after this one was left behind
            _replace_wait(before)


@contextmanager
def following(
    waited: Callable[[Any, list[Event]], bool | None], *, any_thread: bool = False
) -> Iterator[list[tuple[Any, list[Event]]]]:
    """In the block, `waited(work, events)` is called before a wait for calls that began in it; True as above.

    Gives the works with their calls' events, and holds them, so that a work's identity stays its own.
    """
    works: list[tuple[Any, list[Event]]] = []
    pending = ledger._recorder().pending
    before, hidden = pending.add, vars(pending).get("add")  # of a block around this one

    def add(handle: Any) -> None:
        works.append((handle.work, [call.event for call in handle.calls]))
        before(handle)

    def note(work: Any) -> bool | None:
        return next((waited(work, events) for other, events in works if other is work), None)

    pending.add = add
    try:
        with noting_waits(note, any_thread=any_thread):
            yield works
    finally:
        if pending.add is add:  # else a later block replaced it, after this one was left behind
            del pending.add
            if hidden is not None:
                pending.add = hidden
        works.clear()


def _replace_wait(function: Callable[..., Any]) -> None:
    dist.Work.wait = function
