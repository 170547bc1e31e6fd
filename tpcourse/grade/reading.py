"""From the bytes of a file to the cells of a notebook, of any format and whatever is wrong with it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

LONGEST = 200_000  # characters of a cell


class Unreadable(ValueError):
    """What is wrong with a file, in a sentence for its student."""


@dataclass
class Cell:
    """A student's cell: its text, id, nbgrader's grade id and whether it is code."""

    source: str
    is_code: bool = True
    id: str = ""
    grade_id: str = ""
    is_check: bool = False


@dataclass
class Submitted:
    """A student's cells in their order, and what was noticed on the way."""

    cells: list[Cell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_cells(data: bytes) -> Submitted:
    """The cells of a notebook of format 3 or 4; outputs, kernel names and other metadata are not looked at.

    Raises: Unreadable.
    """
    if not data.strip(b"\0 \t\r\n\xef\xbb\xbf"):
        raise Unreadable("the file is empty")
    found = Submitted()
    text = _decoded(data, found.notes)
    try:
        book = json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        raise Unreadable(f"the file is no notebook: its JSON breaks off or is wrong in line {error.lineno}") from None
    except (RecursionError, ValueError):
        raise Unreadable("the file is no notebook: its JSON cannot be read") from None
    for cell in _raw_cells(book, found.notes):
        if isinstance(cell, dict):
            found.cells.append(_cell(cell))
    return found


def _decoded(data: bytes, notes: list[str]) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        notes.append("The file was UTF-16, not UTF-8; it was read all the same.")
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        notes.append("The file was not UTF-8; some letters may have changed.")
        return data.decode("cp1252", errors="replace")


def _raw_cells(book: Any, notes: list[str]) -> list[Any]:
    if not isinstance(book, dict):
        raise Unreadable("the file is JSON and no notebook")
    cells = book.get("cells")
    if cells is None and isinstance(book.get("worksheets"), list):
        notes.append("The file was a notebook of format 3; it was read all the same.")
        sheets = [sheet for sheet in book["worksheets"] if isinstance(sheet, dict)]
        cells = [cell for sheet in sheets if isinstance(sheet.get("cells"), list) for cell in sheet["cells"]]
    if not isinstance(cells, list):
        raise Unreadable("the file is JSON and no notebook: it has no cells")
    return cells


def _cell(raw: dict[str, Any]) -> Cell:
    source = raw.get("source", raw.get("input", ""))
    text = "".join(map(str, source)) if isinstance(source, list) else str(source)
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be written
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    metadata = raw.get("metadata")
    meta = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    meta = meta if isinstance(meta, dict) else {}
    is_check = bool(meta.get("grade")) and not meta.get("solution")
    return Cell(text, raw.get("cell_type") == "code", str(raw.get("id", "")), str(meta.get("grade_id", "")), is_check)
