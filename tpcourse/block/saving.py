"""A model in a folder: each rank writes what it holds, and any number of ranks reads what it needs."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.block.gpt import GPT
from tpcourse.block.layouts import Shard
from tpcourse.wire.saves import INDEX, read_index, replace_file, shared_name, together, write_index

FORMAT = "tpcourse GPT, 1"
KEYS = {"format", "name", "files", "config", "forwards"}


def save(model: GPT, folder: str | os.PathLike[str]) -> None:
    """Write the model to a folder: a file for each rank, then an index that names them.

    Each element is written once, by the first rank that holds it. Files get new names; the index changes from the
    old save to the new one in one rename, when all files are there, and the old files are then removed. So the folder
    holds a whole model at every moment.
    Traffic: one broadcast of a name, and two gathers of error messages.
    Raises: ValueError on every rank if one of them cannot write.
    Trap: all ranks of `tp` need the same folder, on a file system that they share; with data parallelism only one
    of the equal models is saved. The optimizer's state is not.
    """
    folder, (r, p) = Path(folder), _place(model)
    name = shared_name(model.tp)
    old = _names_in(folder)
    files = [f"weights-{name}-{rank}-of-{p}.pt" for rank in range(p)]
    index = {"format": FORMAT, "name": name, "files": files, "config": asdict(model.config), "forwards": model.forwards}
    try:
        together(model.tp, lambda: _write_part(model, folder / files[r], name))
        together(model.tp, lambda: write_index(folder, index) if r == 0 else None)
    except ValueError:
        (folder / files[r]).unlink(missing_ok=True)
        raise
    for file in old if r == 0 else []:
        with suppress(OSError):  # no index names it any more
            (folder / file).unlink()


@torch.no_grad()
def load(model: GPT, folder: str | os.PathLike[str]) -> None:
    """Read a model that any number of ranks saved, cast to this one's dtype.

    Reads what this rank holds, piece by piece, and only then changes the model.
    Traffic: one gather of error messages.
    Raises: ValueError on every rank, that names a file that is missing, truncated or not of this save, or a weight
    that is not as this model's; the model is then untouched.
    """
    index, parts = together(model.tp, lambda: _read(model, Path(folder)))
    for name, weight in model.named_parameters():
        weight.copy_(parts[name])
    model.forwards = index["forwards"]


def _place(model: GPT) -> tuple[int, int]:
    return (0, 1) if model.tp is None else (dist.get_rank(model.tp), dist.get_world_size(model.tp))


def _write_part(model: GPT, path: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pieces = {}
    for weight_name, weight in model.named_parameters():
        shard = model.shards[weight_name]
        pairs = zip(shard.pieces, shard.views(weight.detach()), strict=True)
        pieces[weight_name] = [(piece.start, view.cpu().clone()) for piece, view in pairs if piece.is_first]
    replace_file(path, lambda part: torch.save({"format": FORMAT, "name": name, "pieces": pieces}, part))


def _names_in(folder: Path) -> list[str]:
    """The files of the save that is in the folder, if there is one."""
    try:
        return _read_index(folder)["files"]
    except ValueError:
        return []


def _read_index(folder: Path) -> dict[str, Any]:
    of = "a model that tpcourse.block.save wrote"
    return read_index(folder, form=FORMAT, keys=KEYS, missing="no model is saved", of=of)


def _read(model: GPT, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The index, and this rank's part of every weight."""
    index = _read_index(folder)
    _require_same(index["config"], asdict(model.config), folder / INDEX)
    files = {file: _read_part(folder / file, index["name"]) for file in index["files"]}
    return index, {name: _assemble(name, shard, files, folder) for name, shard in model.shards.items()}


def _require_same(saved: dict[str, Any], ours: dict[str, Any], path: Path) -> None:
    """Raises: ValueError unless both configs give the same weights, and the same values from them."""
    free = {"dropout", "attention"} | ({"T"} if ours["rotary"] else set())
    for name in sorted(ours.keys() - free):
        if saved.get(name) != ours[name]:
            raise ValueError(f"{path} is of a model with {name} = {saved.get(name)}, but this one has {ours[name]}")


def _read_part(path: Path, name: str) -> dict[str, list[tuple[int, Tensor]]]:
    try:
        part = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing, but the index names it") from None
    except Exception as fault:  # torch raises whatever it trips over
        raise ValueError(f"{path} cannot be read, it may be truncated: {type(fault).__name__}") from fault
    if not isinstance(part, dict) or (part.get("format"), part.get("name")) != (FORMAT, name):
        raise ValueError(f"{path} does not belong to this save: its index names another")
    return part["pieces"]


def _assemble(name: str, shard: Shard, files: dict[str, Any], folder: Path) -> Tensor:
    """This rank's part of one weight, out of the pieces of all files that overlap it."""
    found = [piece for pieces in files.values() for piece in pieces.get(name, [])]
    if not found:
        raise ValueError(f"no file of {folder} has a piece of {name}")
    local = found[0][1].new_empty(shard.local_shape)
    missing = local.numel()
    for mine, view in zip(shard.pieces, shard.views(local), strict=True):
        for start, saved in found:
            first, end = max(mine.start, start), min(mine.end, start + saved.shape[shard.dim])
            if first < end:
                view.narrow(shard.dim, first - mine.start, end - first).copy_(
                    saved.narrow(shard.dim, first - start, end - first)
                )
                missing -= (end - first) * (local.numel() // local.shape[shard.dim])
    if missing:
        raise ValueError(f"{missing} elements of {name} are in no file of {folder}")
    return local
