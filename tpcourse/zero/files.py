"""Files that are there whole or not at all, and what a reader hears when one is not as it was written."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

FORMAT = "tpcourse ZeRO, 1"
INDEX = "index.json"
KEYS = {"format", "id", "files", "shapes", "groups"}
FLAT = {"flatten_state_dict": False, "flatten_sharded_tensors": False}


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


def place_of(folder: Path, name: str) -> Path:
    """Where the files of the save of this name lie."""
    return folder / f"zero-{name}"


def mark(name: str) -> Tensor:
    """The save's name as a tensor, to lie in each file."""
    return torch.tensor(list(bytes.fromhex(name)), dtype=torch.uint8)


class Writer(dcp.FileSystemWriter):
    """Torch's, with the folder's name alone in the metadata: it holds wherever the save is moved."""

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self.path.name)


def write_files(place: Path, state: dict[str, Any], *, dp: dist.ProcessGroup | None) -> None:
    """Write one file for each rank, and one that says where in them everything lies.

    Raises: ValueError on every rank if one of them cannot write.
    """
    writer, planner = Writer(str(place)), dcp.DefaultSavePlanner(**FLAT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that without a group nothing is sent
            dcp.save(state, storage_writer=writer, planner=planner, process_group=dp, no_dist=dp is None)
    except CheckpointException as fault:
        raise ValueError(f"cannot write {place}: {_words(fault)}") from fault


def write_index(folder: Path, name: str, **content: Any) -> None:
    """Write the index, with the size of each file: from now on the folder holds this save."""
    files = {file.name: file.stat().st_size for file in sorted(place_of(folder, name).iterdir())}
    index = {"format": FORMAT, "id": name, "files": files, **content}
    temporary = folder / f"{INDEX}.part"
    try:
        with temporary.open("w") as file:
            file.write(json.dumps(index, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())  # on the disk before the old save is removed
        os.replace(temporary, folder / INDEX)
    finally:
        temporary.unlink(missing_ok=True)


def remove_others(folder: Path, name: str) -> None:
    """Remove the files of older saves, and of those that were cut off: no index names them."""
    for place in folder.iterdir():
        if re.fullmatch("zero-[0-9a-f]{12}", place.name) and place != place_of(folder, name):
            shutil.rmtree(place, ignore_errors=True)


@dataclass(frozen=True)
class Saved:
    """A save whose files are there, with the sizes that its index gives them."""

    place: Path
    index: dict[str, Any]
    metadata: Metadata

    def fill(self, state: dict[str, Any]) -> None:
        """Read the elements that `state` names into its tensors. Nothing is sent.

        Raises: ValueError if a file is not what the metadata says.
        """
        reader, planner = dcp.FileSystemReader(str(self.place)), dcp.DefaultLoadPlanner(**FLAT)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that nothing is sent
                dcp.load(state, storage_reader=reader, planner=planner, no_dist=True)
        except CheckpointException as fault:
            raise ValueError(f"{self.place} cannot be read: {_words(fault)}") from fault

    def require_marks(self, r: int, p: int) -> None:
        """Every p-th file belongs to this save. Raises: ValueError that names one that does not."""
        files = {at.fqn: info.relative_path for at, info in self.metadata.storage_data.items()}
        for key in sorted(key for key in files if key.startswith("id/"))[r::p]:
            found = {key: torch.zeros_like(mark(self.index["id"]))}
            try:
                self.fill(found)
            except ValueError as fault:
                raise ValueError(f"{self.place / files[key]} cannot be read") from fault
            if not torch.equal(found[key], mark(self.index["id"])):
                raise ValueError(f"{self.place / files[key]} does not belong to this save: its index names another")


def open_save(folder: Path) -> Saved:
    """The save in a folder. Raises: ValueError that names a file that is missing or not as the index says."""
    index = _read_index(folder)
    place = place_of(folder, index["id"])
    for name, size in index["files"].items():
        if not (place / name).is_file():
            raise ValueError(f"{place / name} is missing, but the index names it")
        if (found := (place / name).stat().st_size) != size:
            raise ValueError(f"{place / name} has {found} bytes, but {size} were written: it is truncated or foreign")
    file = place / ".metadata"
    try:
        metadata = dcp.FileSystemReader(str(place)).read_metadata()
        of_this = metadata.storage_meta.checkpoint_id == place.name
    except Exception as fault:  # unpickling raises whatever it trips over
        raise ValueError(f"{file} cannot be read: {type(fault).__name__}") from fault
    if not of_this:
        raise ValueError(f"{file} does not belong to this save: its index names another")
    return Saved(place, index, metadata)


def _read_index(folder: Path) -> dict[str, Any]:
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


def _words(fault: CheckpointException) -> str:
    """What each rank ran into."""
    return "; ".join(f"rank {rank}: {error}" for rank, (error, _) in fault.failures.items())
