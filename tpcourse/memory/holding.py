"""`held`: the bytes that are there now, each storage once, by kind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tpcourse.memory.counts import KINDS, Held
from tpcourse.memory.storages import key_of, storages_of, tensors_in


def held(
    model: torch.nn.Module | None = None, optimizer: Any = None, *, alive: bool = False, **more: Any
) -> Held:
    """Bytes that this rank holds by kind: parameter, gradient, master, moment, activation, buffer, other.

    Every storage counts once and whole, under the first kind that claims it: a view of a bucket holds the
    bucket, tied weights hold one weight, and a shard holds what is here of it. A master copy is what the
    optimizer steps and the model does not hold; a moment is any tensor of the optimizer's state but its step
    counts, which are `other`. More tensors go by kind: `held(model, adam, buffer=[bucket], activation=kept)`.
    `alive=True`, or no argument at all, adds whatever else Python can reach: `activation` if it waits for a
    backward, else `other`.

    Raises: ValueError for a model without parameters, an optimizer without any, or an unknown kind.
    Trap: Python cannot reach what only autograd's graph holds: `saved` counts that, `peak` sees it come and
    go.
    """
    _require(model, optimizer, more)
    claims: dict[str, list[Tensor]] = {kind: list(tensors_in(more.get(kind))) for kind in KINDS}
    for kind, tensor in (*_of_model(model), *_of_optimizer(optimizer, model)):
        claims[kind].append(tensor)
    if alive or (model is None and optimizer is None and not more):
        gc.collect()  # what hangs in a dead circle would be freed soon, and is nobody's
        for tensor in living():
            claims["activation" if tensor.grad_fn is not None else "other"].append(tensor)
    return count(claims)


def count(claims: dict[str, list[Tensor]]) -> Held:
    """Add up storages by kind, the first kind that claims a storage has it; with the allocator's figures on a
    GPU.
    """
    seen: set[int] = set()
    found, devices = Held(), set()
    for kind in KINDS:
        for storage in (storage for tensor in claims.get(kind, []) for storage in storages_of(tensor)):
            if key_of(storage) not in seen and storage.nbytes():
                seen.add(key_of(storage))
                found[kind] = found.get(kind, 0) + storage.nbytes()
                devices.add(storage.device)
    gpu = next((device for device in devices if device.type == "cuda"), None)
    if gpu is not None:
        found.allocated, found.peak = torch.cuda.memory_allocated(gpu), torch.cuda.max_memory_allocated(gpu)
    return found


def living() -> list[Tensor]:
    """Every tensor that Python can reach now."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]


def _of_model(model: torch.nn.Module | None) -> Iterator[tuple[str, Tensor]]:
    if model is None:
        return
    for parameter in model.parameters():
        yield "parameter", parameter
        if parameter.grad is not None:
            yield "gradient", parameter.grad
    yield from (("buffer", buffer) for buffer in model.buffers())


def _of_optimizer(optimizer: Any, model: torch.nn.Module | None) -> Iterator[tuple[str, Tensor]]:
    """What it steps, their gradients, its state. The model's own parameters are counted already."""
    for parameter in _stepped(optimizer):
        yield "parameter" if model is None else "master", parameter
        if parameter.grad is not None:
            yield "gradient", parameter.grad
    for state in getattr(optimizer, "state", {}).values():
        for name, value in state.items():
            yield from (("other" if name == "step" else "moment", tensor) for tensor in tensors_in(value))


def _stepped(optimizer: Any) -> list[Tensor]:
    return [p for group in getattr(optimizer, "param_groups", []) for p in group["params"]]


def _require(model: Any, optimizer: Any, more: dict[str, Any]) -> None:
    if model is not None and not isinstance(model, torch.nn.Module):
        fix = "give tensors by kind, held(parameter=[...])"
        raise ValueError(f"model = a {type(model).__name__} is no torch.nn.Module: {fix}")
    if model is not None and next(model.parameters(), None) is None:
        raise ValueError("this model has 0 parameters: give the model that is trained, or tensors by kind")
    if optimizer is not None and not _stepped(optimizer):
        raise ValueError("this optimizer has 0 parameters: make it after the model, from model.parameters()")
    for kind in more:
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of memory: use {', '.join(KINDS)}")
