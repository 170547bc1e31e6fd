"""From the pieces that any number of ranks saved to the piece that this rank needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tpcourse.zero.flat import Flat


def piece_of(flat: Flat, files: dict[str, Any], folder: Path) -> tuple[Tensor, dict[str, Tensor]]:
    """One flat array's piece: each weight's part to its place, zeros in the padding."""
    values: dict[str, Tensor] = {}
    for name, _, there, here in flat.spans():
        for key, part in assemble(name, there, files, folder).items():
            if part.dim():
                values.setdefault(key, part.new_zeros(flat.n))[here] = part
            elif not torch.equal(values.setdefault(key, part), part):
                raise ValueError(f"{name} of {folder} has {key} = {part}, others here have {values[key]}")
    return values.pop("weight", torch.zeros_like(flat.master)), values


def assemble(name: str, wanted: slice, files: dict[str, Any], folder: Path) -> dict[str, Tensor]:
    """Elements of one flattened weight, and of its states, out of all files that have some."""
    found: dict[str, Tensor] = {}
    missing = wanted.stop - wanted.start
    for start, parts in (piece for part in files.values() for piece in part["pieces"].get(name, [])):
        first, end = max(wanted.start, start), min(wanted.stop, start + parts["weight"].numel())
        if first >= end:
            continue
        missing -= end - first
        for key, part in parts.items():
            if part.dim():
                target = found.setdefault(key, part.new_empty(wanted.stop - wanted.start))
                target[first - wanted.start : end - wanted.start] = part[first - start : end - start]
            else:
                found[key] = part
    if missing:
        raise ValueError(f"{missing} elements of {name} are in no file of {folder}")
    return found
