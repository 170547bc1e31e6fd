"""What every part of authoring needs to say about a notebook: its cells, their tags, its bytes."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TypeAlias

import nbformat
from nbformat import NotebookNode

Cell: TypeAlias = NotebookNode
Notebook: TypeAlias = NotebookNode

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},  # no version: it belongs to the machine
}


class AuthoringError(ValueError):
    """A source or a run that cannot become a notebook; says file, cell and what is wrong."""


def tags(cell: Cell) -> list[str]:
    """The cell's tags."""
    return list(cell.metadata.get("tags", []))


def depends_on_machine(cell: Cell) -> bool:
    """Whether the cell's outputs may differ from machine to machine, so that only its source is compared."""
    return bool({"machine-dependent", "nbval-ignore-output"} & set(tags(cell)))


def where(cell: Cell, index: int) -> str:
    """How a message names a cell: its number from 1, its kind and its first line of text."""
    lines = [line.strip() for line in cell.source.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("%%px")] or lines or ["(empty)"]
    text = lines[0] if len(lines[0]) <= 60 else lines[0][:57] + "..."
    return f"cell {index + 1} ({cell.cell_type}, `{text}`)"


def to_bytes(notebook: Notebook) -> bytes:
    """The file of a notebook; the same notebook always gives the same bytes.

    Raises: `AuthoringError` if it is not a valid notebook of format 4.5.
    """
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        raise AuthoringError(f"not a valid notebook: {error.message}") from error
    return (nbformat.writes(notebook, version=4) + "\n").encode()  # sorted keys, indent of one


def set_ids(notebook: Notebook) -> None:
    """Give each cell an id made from its kind and source, so that converting again gives the same ids."""
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\0{cell.source}".encode()).hexdigest()[:12]
        seen[digest] += 1
        cell["id"] = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
