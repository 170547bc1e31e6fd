"""`saved`: what autograd keeps between a forward and its backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tpcourse.memory.counts import Kept, Saved
from tpcourse.memory.holding import living
from tpcourse.memory.storages import key_of, storages_of, tensors_in


def saved(fn: Callable[..., Any], *args: Any, parameters: Iterable[Tensor] = (), **kwargs: Any) -> Saved:
    """What autograd keeps when `fn(*args, **kwargs)` has returned: each storage once, parameters apart.

    Every operation that needs a tensor in its backward saves it; `torch.autograd.graph.saved_tensors_hooks`
    sees each one. Every `torch.nn.Parameter` that Python can reach is known; `parameters` names other tensors
    that stay anyway.

    Raises: ValueError if nothing that is returned needs a backward, as under `torch.no_grad()`.
    Trap: what `fn` does not return, and what it has run backward through, is no longer kept.
    """
    seen: list[weakref.ref[Packed]] = []

    def pack(tensor: Tensor) -> Packed:
        packed = Packed(tensor)
        seen.append(weakref.ref(packed))
        return packed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.tensor):
        result = fn(*args, **kwargs)
    if not any(tensor.requires_grad for tensor in tensors_in(result)):
        name = getattr(fn, "__name__", type(fn).__name__)
        fix = "return its output, and call it with gradients on"
        raise ValueError(f"{name} returned 0 tensors that need a backward: {fix}")
    return _kept((packed for reference in seen if (packed := reference()) is not None), parameters)


class Packed:
    """A tensor that an operation saved, for as long as its graph keeps it."""

    def __init__(self, tensor: Tensor) -> None:
        # Trap: an operation's own output, packed as it is, would hold the graph that holds it, for ever.
        self.tensor = tensor.detach()


def _kept(packed: Iterable[Packed], parameters: Iterable[Tensor]) -> Saved:
    """One entry for each storage, in the order in which they were saved first."""
    known = [*parameters, *(tensor for tensor in living() if isinstance(tensor, torch.nn.Parameter))]
    weights = {key_of(storage) for tensor in known for storage in storages_of(tensor)}
    found: dict[int, Kept] = {}
    for tensor in (one.tensor for one in packed):
        for storage in storages_of(tensor):
            key, dtype = key_of(storage), str(tensor.dtype).removeprefix("torch.")
            times = found[key].times + 1 if key in found else 1
            found[key] = Kept(storage.nbytes(), tuple(tensor.shape), dtype, times, key in weights)
    return Saved(list(found.values()))
