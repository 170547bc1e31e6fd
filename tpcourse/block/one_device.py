"""Between the parts that ranks hold and the plain state dict of one device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse import wire
from tpcourse.block.gpt import GPT
from tpcourse.block.layouts import Shard, shard_of


@torch.no_grad()
def to_one_device(model: GPT) -> dict[str, Tensor]:
    """The whole weights on every rank, on the CPU, under the names that a GPT on one device has.

    `GPT(config).load_state_dict(to_one_device(model))` works. A tied weight is there once, as tokens.weight.
    Shapes: name -> whole weight. Traffic: one all-gather for each weight that is split, in the order of the names.
    Trap: every rank must call it, also if only one wants the weights.
    """
    return {name: _whole(model, name, weight.detach()) for name, weight in model.named_parameters()}


@torch.no_grad()
def from_one_device(model: GPT, state: Mapping[str, Tensor]) -> None:
    """Give the model this rank's part of whole weights, cast to its dtype.

    Traffic: none; every rank needs the same `state`, which may lie on the CPU.
    Raises: ValueError that names a weight that is missing, too much or of another shape; the model is untouched.
    """
    require_names({name: tuple(whole.shape) for name, whole in state.items()}, model.shards, "the state dict")
    for name, weight in model.named_parameters():
        weight.copy_(model.shards[name].cut(state[name]))


def require_names(found: Mapping[str, tuple[int, ...]], shards: Mapping[str, Shard], where: str) -> None:
    """Raises: ValueError unless these are the model's names and whole shapes."""
    for name in sorted({*found, *shards}):
        if name not in found:
            raise ValueError(f"{where} has no {name}, a weight of this model")
        if name not in shards:
            hint = ": make the model with tied=False" if name == "head.weight" else ""
            raise ValueError(f"{where} has {name}, which is no weight of this model{hint}")
        if found[name] != shards[name].shape:
            raise ValueError(
                f"{where} has {name} of shape {list(found[name])}, but this model's is {list(shards[name].shape)}"
            )


def _whole(model: GPT, name: str, local: Tensor) -> Tensor:
    shard = model.shards[name]
    if model.tp is None or shard.layout == "whole":
        return local.cpu().clone()
    p = dist.get_world_size(model.tp)
    all_shards = [shard_of(name, shard.shape, model.config, p, r, model.layouts) for r in range(p)]
    sizes = [each.local_shape[shard.dim] for each in all_shards]
    gathered = wire.all_gather(local, group=model.tp, dim=shard.dim, sizes=sizes).cpu()
    whole = gathered.new_empty(shard.shape)
    for each, part in zip(all_shards, gathered.split(sizes, shard.dim), strict=True):
        each.paste(part, whole)
    return whole
