"""Which line of the learner's code made a call."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType
from typing import NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
OURS = os.path.dirname(os.path.dirname(HERE)) + os.sep
TOOLS = os.path.join("wire", "exchange.py")             # what collectives by hand are made of: never the maker's name
LEARNER, COURSE, LIBRARY, TORCH, HIDDEN = range(5)      # kinds of files
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
WAITS_IN_CPP = ("autograd/graph.py", "distributed/utils.py", "nn/parallel/distributed.py")


class Origin(NamedTuple):
    """Where a call came from."""

    line: str
    function: str
    is_blocking: bool       # from dist.send or dist.recv
    is_cpp: bool            # begun by C++ code, which also waits for it where Python cannot see


class Places:
    """The cells of the notebook, and how a frame's place is written."""

    def __init__(self) -> None:
        self.cells: dict[str, tuple[int, int]] = {}     # file name -> number of the cell, lines above it
        self.current: int | None = None
        self.main_thread: int | None = None
        self._kinds = Kinds()

    def register_cell(self, filename: str, number: int, shift: int = 0) -> None:
        """Name the compiled file of the cell that runs next."""
        self.cells[filename] = (number, shift)
        self.current = number

    def place(self, frame: FrameType) -> str:
        """ "line 12" of the current cell, "line 4 of cell 7", or "line 12 of test_x.py". """
        filename = frame.f_code.co_filename
        if filename not in self.cells:
            return f"line {frame.f_lineno} of {os.path.basename(filename)}"
        number, shift = self.cells[filename]
        line = f"line {frame.f_lineno + shift}"
        return line if number == self.current else f"{line} of cell {number}"

    def origin(self, frame: FrameType | None) -> Origin:
        """Walk back from the ledger's frame to the innermost frame of the learner."""
        kinds, is_cpp, is_blocking = self._kinds, True, False
        while frame is not None and kinds[frame.f_code.co_filename] == HIDDEN:
            frame = frame.f_back
        if frame is not None:
            is_cpp = frame.f_code.co_filename.endswith(WAITS_IN_CPP)
        while frame is not None and kinds[(code := frame.f_code).co_filename] >= LIBRARY:
            is_blocking |= code.co_name in ("send", "recv")
            frame = frame.f_back
        found = self.learner_frame(frame) or self.learner_frame(self._main_frame())
        line = "" if found is None else self.place(found)
        return Origin(line, _function(frame), is_blocking, is_cpp)

    def learner_frame(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of a cell; without cells, of a file outside torch, the course and libraries."""
        first = None
        while frame is not None:
            if frame.f_code.co_filename in self.cells:
                return frame
            if first is None and self._kinds[frame.f_code.co_filename] == LEARNER:
                if not self.cells:
                    return frame
                first = frame
            frame = frame.f_back
        return first

    def _main_frame(self) -> FrameType | None:
        if self.main_thread in (None, threading.get_ident()):
            return None
        return sys._current_frames().get(self.main_thread or 0)


def _function(frame: FrameType | None) -> str:
    """The function of a frame; one that a comprehension stands in, and "<module>" for a cell itself."""
    while frame is not None and frame.f_code.co_name in COMPREHENSIONS:     # frames until 3.12
        frame = frame.f_back
    name = "" if frame is None else frame.f_code.co_name
    return "<module>" if name.startswith("<cell") else name


class Kinds(dict[str, int]):
    """File name -> kind of file, found out once."""

    def __missing__(self, filename: str) -> int:
        kind = self[filename] = _kind_of(filename)
        return kind


def _kind_of(filename: str) -> int:
    import torch

    path = os.path.abspath(filename)
    if path.startswith(HERE):
        return HIDDEN
    if path.startswith(OURS):
        return LIBRARY if path.endswith(TOOLS) else COURSE
    if path.startswith(os.path.dirname(os.path.abspath(torch.__file__)) + os.sep):
        return TORCH
    if {"site-packages", "dist-packages"} & set(Path(path).parts) or filename.startswith("<frozen"):
        return LIBRARY
    paths = sysconfig.get_paths()
    is_standard = any(path.startswith(paths[key] + os.sep) for key in ("stdlib", "platstdlib"))
    return LIBRARY if is_standard else LEARNER
