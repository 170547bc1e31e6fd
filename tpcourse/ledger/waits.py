"""Who waits for which call, told as it happens: for the order of a program, which no clock shows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tpcourse import ledger
from tpcourse.ledger.event import Event

Works = list[tuple[Any, list[Event]]]


class Listener:
    """What the recorder tells of a block: waits of this thread, or of any, and works as they begin, for a list that is
    given to hold them.
    """

    def __init__(self, note: Callable[[Any], bool | None], any_thread: bool, works: Works | None = None) -> None:
        self.note, self.works = note, works
        self.thread = None if any_thread else threading.get_ident()

    def begins(self, work: Any, events: list[Event]) -> None:
        """Calls began, with this work to wait for."""
        if self.works is not None:
            self.works.append((work, events))

    def waits(self, work: Any) -> bool:
        """A wait begins; True if it is to be left out."""
        return self.thread in (None, threading.get_ident()) and bool(self.note(work))


@contextmanager
def noting_waits(note: Callable[[Any], bool | None], *, any_thread: bool = False) -> Iterator[None]:
    """In the block, `note(work)` is called before this thread (or any) waits for a work; if it says True, nobody waits.

    Trap: on gloo a second wait for the same message waits for another message.
    """
    with _listening(Listener(note, any_thread)):
        yield


@contextmanager
def following(
    waited: Callable[[Any, list[Event]], bool | None], *, any_thread: bool = False
) -> Iterator[Works]:
    """In the block, `waited(work, events)` is called before a wait for calls that began in it; True as above.

    Gives the works with their calls' events, and holds them, so that a work's identity stays its own.
    """
    works: Works = []

    def note(work: Any) -> bool | None:
        return next((waited(work, events) for other, events in works if other is work), None)

    with _listening(Listener(note, any_thread, works)):
        try:
            yield works
        finally:
            works.clear()


@contextmanager
def _listening(listener: Listener) -> Iterator[None]:
    """A block that is left behind, as its thread hangs, hears nothing more once the ledger is reset."""
    recorder = ledger._recorder()
    recorder.listeners = (listener, *recorder.listeners)
    try:
        yield
    finally:
        recorder.listeners = tuple(other for other in recorder.listeners if other is not listener)
