"""Calls that ended before anybody waited for them: what a later wait is for, without keeping any memory alive."""

from __future__ import annotations

import weakref
from typing import Any

from tpcourse.ledger.event import Event


class Ended:
    """Events by a thing that the caller still holds: torch's Work, or the storage that a call wrote."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Any, list[Event]]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, key: int, thing: Any, events: list[Event]) -> None:
        """Remember the events until the thing is gone; later ones take the place of earlier ones."""

        def gone(reference: Any) -> None:
            if self._rows.get(key, (None,))[0] is reference:
                self._rows.pop(key, None)

        self._rows[key] = (weakref.ref(thing, gone), events)

    def take(self, key: int) -> list[Event]:
        """The events of a thing that is there, once."""
        return self._rows.pop(key, (None, []))[1]

    def clear(self) -> None:
        """Forget all."""
        self._rows.clear()
