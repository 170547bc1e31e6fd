"""Percent format to a notebook without outputs: ids from the content, metadata complete and nothing else."""

from __future__ import annotations

from pathlib import Path

from nbformat import NotebookNode

from tpcourse.authoring import nbgrader
from tpcourse.authoring.notebook import METADATA, AuthoringError, Cell, Notebook, set_ids, where

KEYS = {"tags", "nbgrader", "title", "jupyter", "slideshow", "deletable", "editable"}
MISTYPED = {"raise-exception", "raises_exception", "machine_dependent", "machine-dependant"}


def read_source(path: Path) -> Notebook:
    """Read `NN_name.py` as a notebook of format 4.5 without outputs.

    Raises: `AuthoringError` that names the file and the cell.
    """
    import jupytext

    try:
        raw = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    except Exception as error:  # a broken `tags=[...]` raises whatever the parser met
        raise AuthoringError(f"{path.name}: not in percent format: {str(error).splitlines()[0]}") from error
    notebook = NotebookNode(nbformat=4, nbformat_minor=5, metadata=NotebookNode(METADATA), cells=[])
    for index, cell in enumerate(raw.cells):
        notebook.cells.append(_clean(cell, f"{path.name}: {where(cell, index)}"))
    if not notebook.cells:
        raise AuthoringError(f"{path.name}: no cells; a cell begins with a line `# %%` or `# %% [markdown]`")
    try:
        nbgrader.complete(notebook)
    except AuthoringError as error:
        raise AuthoringError(f"{path.name}: {error}") from error
    set_ids(notebook)
    return notebook


def _clean(raw: Cell, place: str) -> Cell:
    metadata = {key: value for key, value in raw.metadata.items() if not key.startswith("lines_to_")}
    unknown = set(metadata) - KEYS
    if unknown:
        raise AuthoringError(f"{place}: unknown key {', '.join(sorted(unknown))} in its `# %%` line")
    if "tags" in metadata:
        metadata["tags"] = _tags(metadata["tags"], place)
    cell = NotebookNode(cell_type=raw.cell_type, metadata=NotebookNode(metadata), source=raw.source)
    if cell.cell_type == "code":
        cell.update(outputs=[], execution_count=None)
    return cell


def _tags(tags: list[str], place: str) -> list[str]:
    wrong = MISTYPED & set(tags)
    if wrong:
        raise AuthoringError(f"{place}: tag {', '.join(sorted(wrong))} is mistyped; it would be ignored")
    if "machine-dependent" in tags and "nbval-ignore-output" not in tags:
        return [*tags, "nbval-ignore-output"]  # nbval knows only its own name for it
    return tags
