"""Weights and optimizer states in a folder: each rank writes its pieces, any number of ranks reads what it needs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tpcourse.wire.saves import shared_name, together, write_index
from tpcourse.zero.calls import place_in
from tpcourse.zero.contents import Arrays, require_same, shapes_of, state_dict_of, to_read, to_write
from tpcourse.zero.files import index_of, open_save, place_of, remove_others, write_files
from tpcourse.zero.pieces import Pieces


def save(zero: Pieces, folder: str | os.PathLike[str]) -> None:
    """Write weights, masters and optimizer states: a file for each rank, then an index that names them.

    `torch.distributed.checkpoint` writes the files, into a sub-folder of a new name; the index changes from the old
    save to the new one in one rename, when all files are there, and the old ones are then removed. So the folder
    holds a whole save at every moment, whatever ends the program.
    Traffic: one broadcast of a name, the library's plans and results, one gather of error messages.
    Raises: ValueError on every rank if one of them cannot write; the last save is then still there.
    Trap: all ranks of `dp` need the same folder, on a file system that they share; with tensor parallelism each rank of
    `tp` saves to a folder of its own. Gradients are not saved.
    """
    folder, (r, _) = Path(folder), place_in(zero.dp)
    name = shared_name(zero.dp)
    place, content = place_of(folder, name), {"shapes": shapes_of(zero), "groups": len(zero.optimizer.param_groups)}
    try:
        write_files(place, to_write(zero, name), dp=zero.dp)
        together(zero.dp, lambda: write_index(folder, index_of(place, name, **content)) if r == 0 else None)
    except ValueError:
        if r == 0:
            shutil.rmtree(place, ignore_errors=True)
        raise
    if r == 0:
        remove_others(folder, name)


@torch.no_grad()
def load(zero: Pieces, folder: str | os.PathLike[str]) -> None:
    """Read what any stage saved on any number of ranks, with any buckets: training goes on as if not interrupted.

    Reads this rank's pieces, and only then changes anything. Options such as the learning rate are the saved ones.
    Traffic: one gather of error messages; in stages 1 and 2 one all-gather for each bucket.
    Raises: ValueError on every rank, that names a file that is missing, truncated or not of this save, or a weight
    that is not as this module's; nothing is then changed.
    Trap: the library's files hold pickled objects, which can run any code: load only what you trust.
    """
    arrays, state_dict, found = together(zero.dp, lambda: _read(zero, Path(folder)))
    zero.optimizer.load_state_dict(state_dict)
    for each in arrays:
        each.flat.master.copy_(each.weight)
        each.flat.settle()
    for name, tensor in zero.rest():
        tensor.copy_(found[f"rest/{name}"])
    zero.zero_grad()
    zero._spread()


def read(folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """All weights and buffers of a save, whole, by name: for `load_state_dict` on one device, masters in float32.

    Raises: ValueError as `load`.
    Trap: a tied weight has one name, the first: load with strict=False. Load only what you trust, as with `load`.
    """
    saved = open_save(Path(folder))
    saved.require_marks(0, 1)
    wanted = {
        key: torch.empty(kept.size, dtype=kept.properties.dtype)
        for key, kept in saved.metadata.state_dict_metadata.items()
        if key.startswith(("weight/", "rest/"))
    }
    saved.fill(wanted)
    shapes = saved.index["shapes"]
    return {
        name: tensor.reshape(shapes[name]) if kind == "weight" else tensor
        for (kind, _, name), tensor in ((key.partition("/"), tensor) for key, tensor in wanted.items())
    }


def _read(zero: Pieces, folder: Path) -> tuple[list[Arrays], dict[str, Any], dict[str, Any]]:
    """What this rank needs, in new memory: arrays, the optimizer's state, everything by key."""
    saved = open_save(folder)
    require_same(zero, saved)
    saved.require_marks(*place_in(zero.dp))
    wanted, arrays = to_read(zero, saved)
    saved.fill(wanted)
    return arrays, state_dict_of(zero, arrays, wanted["groups"]), wanted
