"""What saves of several ranks share: one name, errors that all ranks hear of, files that are there whole or not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch.distributed as dist

INDEX = "index.json"


def shared_name(group: dist.ProcessGroup | None) -> str:
    """A name that no other save has, the same on all ranks: 12 hex digits. Traffic: one broadcast of it."""
    names = [uuid4().hex[:12]]
    if group is not None:
        dist.broadcast_object_list(names, src=dist.get_global_rank(group, 0), group=group)
    return names[0]


def together(group: dist.ProcessGroup | None, work: Callable[[], Any]) -> Any:
    """`work()` on every rank; if it fails on one, all of them raise a ValueError that says why and where.

    Traffic: one gather of error messages.
    """
    result, error = None, None
    try:
        result = work()
    except (ValueError, OSError) as fault:
        error = str(fault)
    errors = [error]
    if group is not None:
        errors = [None] * dist.get_world_size(group)
        dist.all_gather_object(errors, error, group=group)
    said = {text: rank for rank, text in reversed(list(enumerate(errors))) if text is not None}
    if said:
        raise ValueError("; ".join(f"rank {rank}: {text}" if group else text for text, rank in said.items()))
    return result


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Write to a temporary name, then rename: a file is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        write(part)
        os.replace(part, path)
    except RuntimeError as fault:  # what torch.save raises if the disk is full
        raise ValueError(f"cannot write {path}: {fault}") from fault
    finally:
        part.unlink(missing_ok=True)


def write_index(folder: Path, index: dict[str, Any]) -> None:
    """Write the index, through to the disk: from now on the folder holds the save that it describes."""

    def write(part: Path) -> None:
        with part.open("w") as file:
            file.write(json.dumps(index, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())  # on the disk before the old save is removed

    replace_file(folder / INDEX, write)


def read_index(folder: Path, *, form: str, keys: set[str], missing: str, of: str) -> dict[str, Any]:
    """The index, if it has this format and these keys.

    Raises: ValueError that names it: `missing` if there is none, "not the index of `of`" if it is another one.
    """
    path = folder / INDEX
    try:
        index = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: {missing} in {folder}") from None
    except (OSError, ValueError) as fault:
        raise ValueError(f"{path} cannot be read: {fault}") from fault
    if not isinstance(index, dict) or index.get("format") != form or not index.keys() >= keys:
        raise ValueError(f"{path} is not the index of {of}")
    return index
