"""An exception of the learner's code, in a form that travels to the notebook and reads well there."""

from __future__ import annotations

import linecache
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpcourse.engine.cells import Cells


def describe(error: BaseException, source: str, cells: Cells) -> dict[str, Any]:
    """Name, message and the frames that are the learner's, the innermost library frame named after them."""
    if isinstance(error, SyntaxError):
        return _syntax(error)
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if frame.filename in cells]
    lines = []
    for frame in mine:
        text = (linecache.getline(frame.filename, frame.lineno or 0) or _line(source, frame.lineno)).strip()
        lines.append((cells.place(frame.filename, frame.lineno or 0), text))
    inner = frames[-1] if frames and not (mine and frames[-1] is mine[-1]) else None
    return {
        "name": type(error).__name__,
        "message": str(error),
        "frames": lines,
        "inside": f"{inner.name} in {_short(inner.filename)}" if inner else None,
        "collective": any("torch/distributed" in frame.filename for frame in frames),
        "fatal": _broke_the_gpu(error),
        "place": lines[-1][0] if lines else None,
    }


def _broke_the_gpu(error: BaseException) -> bool:
    """Whether the process cannot use its GPU any more: CUDA keeps such an error until the process ends."""
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)


def _syntax(error: SyntaxError) -> dict[str, Any]:
    place = f"line {error.lineno}"
    frames = [(place, (error.text or "").strip())]
    return {
        "name": type(error).__name__,
        "message": error.msg,
        "frames": frames,
        "inside": None,
        "collective": False,
        "fatal": False,
        "place": place,
    }


def _line(source: str, number: int | None) -> str:
    lines = source.splitlines()
    return lines[number - 1] if number and number <= len(lines) else ""


def _short(filename: str) -> str:
    """The path from the package on: no home folder, no site-packages."""
    for mark in ("site-packages/", "/lib/python"):
        if mark in filename:
            return filename.split(mark, 1)[1]
    return "/".join(filename.rsplit("/", 2)[-2:])
