"""A fresh notebook beside the saved one: what to keep of it, and where they differ."""

from __future__ import annotations

import copy
from pathlib import Path

import nbformat

from tpcourse.authoring.notebook import Cell, Notebook, depends_on_machine, where


def read_saved(path: Path) -> Notebook | None:
    """The notebook on disk; None if there is none or it cannot be read, which a rebuild repairs."""
    try:
        return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except (OSError, ValueError, nbformat.ValidationError):
        return None


def same_code(fresh: Notebook, saved: Notebook | None) -> bool:
    """Whether every code cell of the saved notebook is up to date and was run: its outputs still hold."""
    if saved is None:
        return False
    ours = [(cell.source, cell.metadata) for cell in fresh.cells if cell.cell_type == "code"]
    theirs = [(cell.source, cell.metadata) for cell in saved.cells if cell.cell_type == "code"]
    return ours == theirs and all(_was_run(cell) for cell in saved.cells)


def _was_run(cell: Cell) -> bool:
    return cell.cell_type != "code" or not cell.source.strip() or cell.execution_count is not None


def with_outputs(fresh: Notebook, saved: Notebook) -> Notebook:
    """The fresh notebook with the outputs of a saved one that has the same code."""
    merged = copy.deepcopy(fresh)
    outputs = [cell.outputs for cell in saved.cells if cell.cell_type == "code"]
    for cell in merged.cells:
        if cell.cell_type == "code":
            cell.outputs = copy.deepcopy(outputs.pop(0))
    return merged


def keep_machine_outputs(executed: Notebook, saved: Notebook | None) -> None:
    """Put back the saved outputs of machine-dependent cells whose source is unchanged, in place.

    Without this no rebuild would give the same bytes. To renew them, delete the saved notebook and build.
    """
    stored = {cell.get("id"): cell for cell in (saved.cells if saved else []) if cell.cell_type == "code"}
    for cell in executed.cells:
        old = stored.get(cell.id)
        if old is None or cell.cell_type != "code" or not depends_on_machine(cell):
            continue
        if old.source == cell.source and old.execution_count is not None:
            cell.outputs = copy.deepcopy(old.outputs)
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = cell.execution_count  # a cell above may be new


def first_difference(fresh: Notebook, saved: Notebook, outputs: bool) -> str:
    """The first cell that differs and in what; else what remains, which is the layout of the file."""
    for index, (ours, theirs) in enumerate(zip(fresh.cells, saved.cells, strict=False)):
        if (ours.cell_type, ours.source) != (theirs.cell_type, theirs.source):
            return f"{where(ours, index)} differs from its source"
        if ours.metadata != theirs.metadata:
            return f"{where(ours, index)} has other tags or metadata than its source"
        if not _was_run(theirs) and (_was_run(ours) or not outputs):
            return f"{where(ours, index)} was not run"
        if outputs and ours.cell_type == "code" and ours.outputs != theirs.outputs:
            return f"{where(ours, index)} gives other outputs now"
    if len(fresh.cells) != len(saved.cells):
        return f"has {len(saved.cells)} cells, its source {len(fresh.cells)}"
    return "was saved by an editor: its metadata, cell ids, counts or layout are not those of a build"
