"""The last calls of a rank in a memory-mapped file, which outlives a stuck or killed rank."""

from __future__ import annotations

import itertools
import marshal
import mmap
import os
import struct
import zlib
from dataclasses import fields
from operator import attrgetter
from pathlib import Path

from tpcourse.ledger.event import Event

SLOTS = 64
SLOT_BYTES = 1024
HEAD = struct.Struct("<QIIdB")              # number, length, checksum, end_s, waited in
END, WAITED = struct.Struct("<dB"), struct.Struct("<B")
END_AT, WAITED_AT = 16, 24
NAMES = tuple(field.name for field in fields(Event))
as_tuple = attrgetter(*NAMES)


class Board:
    """The writer: slot number `call % 64` holds a call's event; its end and "waited in" are set in place."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(handle, SLOTS * SLOT_BYTES)
            self._map = mmap.mmap(handle, SLOTS * SLOT_BYTES)
        finally:
            os.close(handle)
        self._numbers = itertools.count(1)
        self._owners = [0] * SLOTS

    def write(self, event: Event, number: int | None = None, is_waited: bool = False) -> int:
        """Write an event and return its number; give the number to write it again."""
        if number is None:
            number = next(self._numbers)
        elif not self._holds(number):
            return number
        self._owners[number % SLOTS] = number
        payload = _payload(event)
        end_s = -1.0 if event.end_s is None else event.end_s
        head = HEAD.pack(number, len(payload), zlib.crc32(payload), end_s, is_waited)
        start = number % SLOTS * SLOT_BYTES
        self._map[start:start + HEAD.size + len(payload)] = head + payload
        return number

    def clear(self) -> None:
        """Empty every slot."""
        self._owners = [0] * SLOTS
        self._map[:] = bytes(SLOTS * SLOT_BYTES)

    def finish(self, number: int, end_s: float) -> None:
        """Note that the call ended, and that nobody waits in it."""
        if self._holds(number):
            END.pack_into(self._map, number % SLOTS * SLOT_BYTES + END_AT, end_s, 0)

    def waited(self, number: int, is_waited: bool) -> None:
        """Note that a thread began or ended to wait in the call."""
        if self._holds(number):
            WAITED.pack_into(self._map, number % SLOTS * SLOT_BYTES + WAITED_AT, is_waited)

    def _holds(self, number: int) -> bool:
        """Whether the slot is still this call's."""
        return self._owners[number % SLOTS] == number


def read_board(path: str | os.PathLike[str]) -> list[Event]:
    """The last calls of a rank, 64 at most, in the order in which they began; a half-written one is left out.

    Raises: FileNotFoundError if the rank never opened its board.
    """
    return [event for event, _ in _read(path)]


def board_waiting(path: str | os.PathLike[str]) -> list[Event]:
    """The calls on a board that a thread of the rank waits in, or waited in when it died."""
    return [event for event, is_waited in _read(path) if is_waited]


def _read(path: str | os.PathLike[str]) -> list[tuple[Event, bool]]:
    data = Path(path).read_bytes()
    slots = (data[start:start + SLOT_BYTES] for start in range(0, len(data), SLOT_BYTES))
    found = [row for row in map(_parse, slots) if row is not None]
    return [(event, is_waited) for _, event, is_waited in sorted(found, key=lambda row: row[0])]


def _parse(slot: bytes) -> tuple[int, Event, bool] | None:
    if len(slot) < HEAD.size:
        return None
    number, length, checksum, end_s, is_waited = HEAD.unpack_from(slot)
    payload = slot[HEAD.size:HEAD.size + length]
    if not number or len(payload) != length or zlib.crc32(payload) != checksum:
        return None
    try:
        event = Event(*marshal.loads(payload))      # plain numbers and text: nothing is executed
    except (ValueError, TypeError, EOFError):
        return None
    event.end_s = None if end_s < 0 else end_s
    return number, event, bool(is_waited)


def _payload(event: Event) -> bytes:
    """The event as bytes; long lists are cut where a slot is too small for them."""
    payload = marshal.dumps(as_tuple(event))
    if HEAD.size + len(payload) > SLOT_BYTES:
        short = Event(*as_tuple(event))
        short.group, short.shape = event.group[:16], event.shape[:8]
        short.splits = short.splits_received = None
        short.line, short.function = event.line[:80], event.function[:80]
        payload = marshal.dumps(as_tuple(short))
    return payload
