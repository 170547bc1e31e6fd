"""What a save holds, by key: weight/NAME, state/KIND/NAME, rest/NAME, groups, and id/RANK in each file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from tpcourse.wire.saves import INDEX
from tpcourse.zero.calls import place_in
from tpcourse.zero.chunks import Chunk
from tpcourse.zero.files import Saved, mark
from tpcourse.zero.flat import Flat
from tpcourse.zero.pieces import Pieces


def to_write(zero: Pieces, name: str) -> dict[str, Any]:
    """What this rank writes: chunks of masters and moments. The first also has what all hold, such as step counts."""
    r, _ = place_in(zero.dp)
    found: dict[str, Any] = {f"id/{r}": mark(name)}
    for flat in zero.flats:
        state = {f"state/{kind}": value for kind, value in zero.optimizer.state.get(flat.master, {}).items()}
        for kind, value in {"weight": flat.master.detach(), **state}.items():
            if value.dim():
                for key, weight, there, here in flat.spans():
                    found[f"{kind}/{key}"] = Chunk(value[here], there.start, weight.numel())
            elif r == 0:
                found |= {f"{kind}/{key}": value for key in flat.names}
    if r == 0:
        found |= {f"rest/{key}": tensor for key, tensor in zero.rest()}
        found["groups"] = [{k: v for k, v in group.items() if k != "params"} for group in zero.optimizer.param_groups]
    return found


def shapes_of(zero: Pieces) -> dict[str, list[int]]:
    """Shapes of the weights that are stepped."""
    return {name: list(weight.shape) for flat in zero.flats for name, weight in flat.named() if weight.numel()}


def require_same(zero: Pieces, saved: Saved) -> None:
    """Raises: ValueError unless the save is of a module and groups like these."""
    folder, there, here = saved.place.parent, saved.index["shapes"], shapes_of(zero)
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            was, is_now = there.get(name, "missing"), here.get(name, "missing")
            raise ValueError(f"{folder / INDEX} is of another module: {name} is {was} there, and {is_now} here")
    if (groups := saved.index["groups"]) != len(zero.optimizer.param_groups):
        raise ValueError(f"{folder} has {groups} parameter groups, and here are {len(zero.optimizer.param_groups)}")
    kept = saved.metadata.state_dict_metadata
    was_rest = {key.removeprefix("rest/"): each.size for key, each in kept.items() if key.startswith("rest/")}
    rest = {name: tensor.shape for name, tensor in zero.rest()}
    if was_rest != rest:
        raise ValueError(f"{folder} has other frozen weights or buffers: {sorted(was_rest)}, here {sorted(rest)}")


@dataclass
class Arrays:
    """What is read for one flat array: arrays for this rank's piece, zeros in the padding; step counts by weight."""

    flat: Flat
    weight: Tensor
    moments: dict[str, Tensor]
    counts: dict[str, dict[str, Tensor]]

    def state(self) -> dict[str, Tensor]:
        """As the optimizer has it. Raises: ValueError if weights of one array made unequal numbers of steps."""
        for kind, by_name in self.counts.items():
            numbers = {name: value.item() for name, value in by_name.items()}
            if len({*numbers.values()}) > 1:
                raise ValueError(f"weights of one array have unequal {kind}: {numbers}. Use the buckets of the save")
        return {kind: next(iter(by_name.values())) for kind, by_name in self.counts.items()} | self.moments


def to_read(zero: Pieces, saved: Saved) -> tuple[dict[str, Any], list[Arrays]]:
    """What this rank reads, by key, in new memory on the CPU; and the arrays that it fills."""
    wanted: dict[str, Any] = {"groups": None}
    wanted |= {f"rest/{name}": torch.empty_like(tensor, device="cpu") for name, tensor in zero.rest()}
    kinds = _kinds(saved)
    return wanted, [_arrays_of(flat, kinds, wanted) for flat in zero.flats]


def state_dict_of(zero: Pieces, arrays: list[Arrays], options: list[dict[str, Any]]) -> dict[str, Any]:
    """What was read, as torch's `load_state_dict` takes it: pieces have numbers, group by group."""
    number_of = {id(each.flat.master): number for number, each in enumerate(arrays)}
    states = {number: state for number, each in enumerate(arrays) if (state := each.state())}
    groups = [
        {**group, **saved, "params": [number_of[id(piece)] for piece in group["params"]]}
        for group, saved in zip(zero.optimizer.param_groups, options, strict=True)
    ]
    return {"state": states, "param_groups": groups}


def _kinds(saved: Saved) -> dict[str, list[tuple[str, TensorStorageMetadata]]]:
    """Weight -> the kinds of states that were saved of it, and how."""
    found: dict[str, list[tuple[str, TensorStorageMetadata]]] = {}
    for key, kept in saved.metadata.state_dict_metadata.items():
        if key.startswith("state/"):
            _, kind, name = key.split("/", 2)
            found.setdefault(name, []).append((kind, kept))
    return found


def _arrays_of(flat: Flat, kinds: dict[str, Any], wanted: dict[str, Any]) -> Arrays:
    """New arrays for this rank's piece of everything; `wanted` gets chunks of them."""
    arrays = Arrays(flat, torch.zeros_like(flat.master, device="cpu"), {}, {})
    for name, weight, there, here in flat.spans():
        wanted[f"weight/{name}"] = Chunk(arrays.weight[here], there.start, weight.numel())
        for kind, kept in kinds.get(name, []):
            key, zeros = f"state/{kind}/{name}", partial(torch.zeros, dtype=kept.properties.dtype)
            if not kept.size:
                wanted[key] = arrays.counts.setdefault(kind, {})[name] = zeros(())
                continue
            if kind not in arrays.moments:
                arrays.moments[kind] = zeros(flat.n)
            wanted[key] = Chunk(arrays.moments[kind][here], there.start, weight.numel())
    return arrays
