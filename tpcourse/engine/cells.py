"""The cells that a rank ran: which compiled file is which cell, and how a line of it is named."""

from __future__ import annotations

from typing import Any

from tpcourse import ledger


class Cells:
    """File name of compiled code -> number of its cell."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.current = 0

    def begin(self, filename: str, number: int) -> None:
        """The cell compiled as `filename` runs now."""
        self.numbers[filename], self.current = number, number
        ledger.register_cell(filename, number)

    def __contains__(self, filename: str) -> bool:
        return filename in self.numbers

    def place(self, filename: str, line: int) -> str:
        """`line 12`, or `line 4 of cell 7` in an earlier cell."""
        number = self.numbers[filename]
        return f"line {line}" if number == self.current else f"line {line} of cell {number}"

    def line_of(self, frame: Any) -> str | None:
        """Where the innermost frame of a cell is, seen from `frame` outwards."""
        while frame is not None:
            if frame.f_code.co_filename in self:
                return self.place(frame.f_code.co_filename, frame.f_lineno)
            frame = frame.f_back
        return None
