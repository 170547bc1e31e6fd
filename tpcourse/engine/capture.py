"""What one cell of one rank prints, shows and returns, kept in order, with a cap."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.display_trap import DisplayTrap
from IPython.core.displaypub import DisplayPublisher

TEXT_LIMIT = 20_000
DISPLAY_LIMIT = 30


class Capture:
    """Items in order: `(kind, data)` with kind stdout, stderr, display or result."""

    def __init__(self) -> None:
        self.items: list[tuple[str, Any]] = []
        self.lock = threading.Lock()
        self.num_characters = self.num_cut = self.num_displays = 0
        self.left: set[int] = set()

    def write(self, kind: str, text: str) -> None:
        """Append text; beyond the cap only count it."""
        if threading.get_ident() in self.left or not text:
            return
        with self.lock:
            room = max(0, TEXT_LIMIT - self.num_characters)
            self.num_characters += len(text)
            self.num_cut += max(0, len(text) - room)
            text = text[:room]
            if text and self.items and self.items[-1][0] == kind:
                self.items[-1] = (kind, self.items[-1][1] + text)
            elif text:
                self.items.append((kind, text))

    def show(self, kind: str, bundle: dict, metadata: dict | None = None) -> None:
        with self.lock:
            self.num_displays += 1
            if self.num_displays <= DISPLAY_LIMIT:
                self.items.append((kind, (bundle, metadata or {})))

    def finish(self) -> list[tuple[str, Any]]:
        """All items, with a line that says what was cut."""
        items = list(self.items)
        if self.num_cut:
            note = f"{self.num_cut} more characters were cut (a cell shows {TEXT_LIMIT} a rank)"
            items.append(("stdout", f"\n... {note}\n"))
        if self.num_displays > DISPLAY_LIMIT:
            items.append(("stdout", f"... {self.num_displays - DISPLAY_LIMIT} more displays were cut\n"))
        return items

    def tail(self, num_characters: int = 1000) -> str:
        """The last text printed so far, for a live view."""
        with self.lock:
            return "".join(text for kind, text in self.items if kind == "stdout")[-num_characters:]


class _Stream(io.TextIOBase):
    encoding = "utf-8"

    def __init__(self, capture: Capture, kind: str) -> None:
        self.capture, self.kind = capture, kind

    def write(self, text: str) -> int:
        self.capture.write(self.kind, str(text))
        return len(text)

    def writable(self) -> bool:
        return True

    def set_parent(self, parent: dict) -> None:
        """Called by ipykernel for every message; our output has no parent message."""


class _Publisher(DisplayPublisher):
    """Stands in for IPython's display publisher."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()
        self.capture = capture

    def publish(self, data: dict, metadata: dict | None = None, *_: Any, **__: Any) -> None:
        self.capture.show("display", data, metadata)

    def set_parent(self, parent: dict) -> None:
        """Called by ipykernel for every message; our output has no parent message."""

    def clear_output(self, wait: bool = False) -> None:
        with self.capture.lock:
            self.capture.items.clear()


class _Hook:
    """Stands in for IPython's display hook: shows the last value of a cell and keeps no reference to it."""

    def __init__(self, shell: Any, capture: Capture, quiet: bool) -> None:
        self.shell, self.capture, self.quiet = shell, capture, quiet

    def __call__(self, result: Any = None) -> None:
        if result is not None and not self.quiet:
            bundle, metadata = self.shell.display_formatter.format(result)
            if bundle:
                self.capture.show("result", bundle, metadata)


def output_of(shell: Any) -> tuple[Any, ...]:
    """Where this process's output goes now: what `capturing` puts back."""
    return sys.stdout, sys.stderr, shell.display_pub, shell.display_trap.hook


def restore_output(shell: Any, output: tuple[Any, ...]) -> None:
    """Point all output at `output`, a value of `output_of`."""
    sys.stdout, sys.stderr, shell.display_pub, shell.display_trap.hook = output


def abandon_output(shell: Any, output: tuple[Any, ...]) -> None:
    """As `restore_output`, while a cell that was left behind still holds IPython's display trap.

    The trap counts how deep it is in use and sets the hook at the first level only: the next cell needs another
    trap, and the old one must not unset the hook when its cell ends.
    """
    old = shell.display_trap
    old._nested_level += 1
    if old.old_hook is not None:
        sys.displayhook = old.old_hook
    shell.display_trap = DisplayTrap(hook=output[3])
    restore_output(shell, output)


@contextmanager
def capturing(shell: Any, capture: Capture, usual: tuple[Any, ...], quiet: bool = False) -> Iterator[None]:
    """Send everything that this rank prints or displays into `capture`, then back to `usual`."""
    publisher, hook = _Publisher(capture), _Hook(shell, capture, quiet)
    restore_output(shell, (_Stream(capture, "stdout"), _Stream(capture, "stderr"), publisher, hook))
    try:
        yield
    finally:
        if shell.display_pub is publisher:  # not if this cell was left behind
            restore_output(shell, usual)
