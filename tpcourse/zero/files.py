"""The files of a save, by torch's library, and what a reader hears when one is not as it was written."""

from __future__ import annotations

import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from tpcourse.wire.saves import read_index

FORMAT = "tpcourse ZeRO, 1"
KEYS = {"format", "id", "files", "shapes", "groups"}
FLAT = {"flatten_state_dict": False, "flatten_sharded_tensors": False}


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


def index_of(place: Path, name: str, **content: Any) -> dict[str, Any]:
    """The index of a save whose files are there, with the size of each."""
    files = {file.name: file.stat().st_size for file in sorted(place.iterdir())}
    return {"format": FORMAT, "id": name, "files": files, **content}


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
    of = "a save that tpcourse.zero wrote"
    index = read_index(folder, form=FORMAT, keys=KEYS, missing="nothing is saved", of=of)
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


def _words(fault: CheckpointException) -> str:
    """What each rank ran into."""
    return "; ".join(f"rank {rank}: {error}" for rank, (error, _) in fault.failures.items())
