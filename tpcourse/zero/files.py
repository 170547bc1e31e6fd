"""Files that are there whole or not at all, and what a reader hears when one is not as it was written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

FORMAT = "tpcourse ZeRO, 1"
INDEX = "index.json"
KEYS = {"format", "name", "files", "shapes"}


def together(dp: dist.ProcessGroup | None, work: Callable[[], Any]) -> Any:
    """`work()` on every rank; if it fails on one, all of them raise a ValueError that says why and where.

    Traffic: one gather of error messages.
    """
    result, error = None, None
    try:
        result = work()
    except (ValueError, OSError) as fault:
        error = str(fault)
    errors = [error]
    if dp is not None:
        errors = [None] * dist.get_world_size(dp)
        dist.all_gather_object(errors, error, group=dp)
    said = {text: rank for rank, text in reversed(list(enumerate(errors))) if text is not None}
    if said:
        raise ValueError("; ".join(f"rank {rank}: {text}" if dp else text for text, rank in said.items()))
    return result


def write_part(path: Path, part: dict[str, Any]) -> None:
    """Write one rank's file. Raises: ValueError or OSError if that fails; nothing is then left of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, lambda temporary: torch.save(part, temporary))


def write_index(folder: Path, index: dict[str, Any]) -> None:
    """Write the index: from now on the folder holds this save."""
    _replace(folder / INDEX, lambda temporary: temporary.write_text(json.dumps(index, indent=1) + "\n"))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write to a temporary name, then rename."""
    temporary = path.with_name(path.name + ".part")
    try:
        write(temporary)
        os.replace(temporary, path)
    except RuntimeError as fault:  # what torch.save raises if the disk is full
        raise ValueError(f"cannot write {path}: {fault}") from fault
    finally:
        temporary.unlink(missing_ok=True)


def read_index(folder: Path) -> dict[str, Any]:
    """The index. Raises: ValueError that names it if it is missing, truncated or something else."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: nothing is saved in {folder}") from None
    except (OSError, ValueError) as fault:
        raise ValueError(f"{path} cannot be read: {fault}") from fault
    if not isinstance(index, dict) or index.get("format") != FORMAT or not index.keys() >= KEYS:
        raise ValueError(f"{path} is not the index of a save that tpcourse.zero wrote")
    return index


def read_all(folder: Path, index: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every file that the index names; tensors are read from the disk when they are used."""
    return {file: _read_part(folder / file, index["name"]) for file in index["files"]}


def _read_part(path: Path, name: str) -> dict[str, Any]:
    try:
        part = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing, but the index names it") from None
    except Exception as fault:  # torch raises whatever it trips over
        raise ValueError(f"{path} cannot be read, it may be truncated: {type(fault).__name__}") from fault
    if not isinstance(part, dict) or (part.get("format"), part.get("name")) != (FORMAT, name):
        raise ValueError(f"{path} does not belong to this save: its index names another")
    return part
