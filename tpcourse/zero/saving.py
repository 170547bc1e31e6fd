"""Weights and optimizer states in a folder: each rank writes its pieces, any number of ranks reads what it needs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.zero.assemble import assemble, piece_of
from tpcourse.zero.calls import place_in
from tpcourse.zero.files import FORMAT, INDEX, read_all, read_index, together, write_index, write_part
from tpcourse.zero.pieces import Pieces


def save(zero: Pieces, folder: str | os.PathLike[str]) -> None:
    """Write weights, masters and optimizer states: a file for each rank, then an index that names them.

    Files get new names; the index changes from the old save to the new one in one rename, when all files are there,
    and files of other saves are then removed. So the folder holds a whole save at every moment, whatever ends the
    program.
    Traffic: one broadcast of a name, and two gathers of error messages.
    Raises: ValueError on every rank if one of them cannot write.
    Trap: all ranks of `dp` need the same folder, on a file system that they share; with tensor parallelism each rank of
    `tp` saves to a folder of its own. Gradients are not saved.
    """
    folder, (r, p) = Path(folder), place_in(zero.dp)
    names = [uuid4().hex[:12]]
    if zero.dp is not None:
        dist.broadcast_object_list(names, src=dist.get_global_rank(zero.dp, 0), group=zero.dp)
    files = [f"pieces-{names[0]}-{rank}-of-{p}.pt" for rank in range(p)]
    shapes = {name: list(weight.shape) for flat in zero.flats for name, weight in flat.named()}
    index = {"format": FORMAT, "name": names[0], "files": files, "shapes": shapes}
    part = {"format": FORMAT, "name": names[0], "pieces": _pieces(zero)} | (_rest(zero) if r == 0 else {})
    try:
        together(zero.dp, lambda: write_part(folder / files[r], part))
        together(zero.dp, lambda: write_index(folder, index) if r == 0 else None)
    except ValueError:
        (folder / files[r]).unlink(missing_ok=True)
        raise
    for file in folder.glob("pieces-*") if r == 0 else []:
        if file.name not in files:  # of an older save, or of one that was cut off: no index names it
            with suppress(OSError):
                file.unlink()


@torch.no_grad()
def load(zero: Pieces, folder: str | os.PathLike[str]) -> None:
    """Read what any stage saved on any number of ranks, with any buckets: training goes on as if not interrupted.

    Reads this rank's pieces, and only then changes anything. Options such as the learning rate are the saved ones.
    Traffic: one gather of error messages; in stages 1 and 2 one all-gather for each bucket.
    Raises: ValueError on every rank, that names a file that is missing, truncated or not of this save, or a weight
    that is not as this module's; nothing is then changed.
    """
    pieces, first = together(zero.dp, lambda: _read(zero, Path(folder)))
    for flat, (master, state) in zip(zero.flats, pieces, strict=True):
        flat.master.copy_(master)
        flat.settle()
        like = {name: value.to(flat.master) if value.dim() else value for name, value in state.items()}
        zero.optimizer.state[flat.master] = like
    for group, options in zip(zero.optimizer.param_groups, first["groups"], strict=True):
        group.update(options)
    for name, tensor in zero.rest():
        tensor.copy_(first["rest"][name])
    zero.zero_grad()
    zero._spread()


def read(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """All weights and buffers of a save, whole, by name: for `load_state_dict` on one device, masters in float32.

    Raises: ValueError as `load`.
    Trap: a tied weight has one name, the first: load with strict=False.
    """
    folder = Path(folder)
    index = read_index(folder)
    files = read_all(folder, index)
    whole = {}
    for name, shape in index["shapes"].items():
        size = torch.Size(shape).numel()
        whole[name] = assemble(name, slice(0, size), files, folder)["weight"].reshape(shape)
    return whole | files[index["files"][0]]["rest"]


def _pieces(zero: Pieces) -> dict[str, list[tuple[int, dict[str, Tensor]]]]:
    """Weight -> (first element, what this rank holds of master and states)."""
    found = {}
    for flat in zero.flats:
        values = {"weight": flat.master.detach(), **zero.optimizer.state.get(flat.master, {})}
        for name, _, there, here in flat.spans():
            cut = {key: value[here] if value.dim() else value for key, value in values.items()}
            found[name] = [(there.start, {key: value.cpu().clone() for key, value in cut.items()})]
    return found


def _rest(zero: Pieces) -> dict[str, Any]:
    """What every rank holds: options of the groups, frozen weights, buffers."""
    options = [{k: v for k, v in group.items() if k != "params"} for group in zero.optimizer.param_groups]
    return {"groups": options, "rest": {name: tensor.cpu().clone() for name, tensor in zero.rest()}}


def _read(zero: Pieces, folder: Path) -> tuple[list[tuple[Tensor, dict[str, Tensor]]], dict[str, Any]]:
    """Master and state of each flat array's piece, and the first rank's file."""
    index = read_index(folder)
    ours = {name: list(weight.shape) for flat in zero.flats for name, weight in flat.named()}
    for name in sorted(ours.keys() | index["shapes"].keys()):
        if ours.get(name) != index["shapes"].get(name):
            saved, here = index["shapes"].get(name, "missing"), ours.get(name, "missing")
            raise ValueError(f"{folder / INDEX} is of another module: {name} is {saved} there, and {here} here")
    files = read_all(folder, index)
    first = files[index["files"][0]]
    groups, rest = len(zero.optimizer.param_groups), {name: tensor.shape for name, tensor in zero.rest()}
    if len(first["groups"]) != groups:
        raise ValueError(f"{folder} has {len(first['groups'])} parameter groups, and here are {groups}")
    if {name: tensor.shape for name, tensor in first["rest"].items()} != rest:
        raise ValueError(f"{folder} has other frozen weights or buffers: {sorted(first['rest'])}, here {sorted(rest)}")
    return [piece_of(flat, files, folder) for flat in zero.flats], first
