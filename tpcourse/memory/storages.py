"""From tensors to the storages under them: a storage is the piece of memory, and many tensors may look at
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of a nested value: lists, tuples, sets, dicts, modules."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, Mapping):
        yield from (tensor for item in value.values() for tensor in tensors_in(item))
    elif isinstance(value, list | tuple | set | frozenset) or hasattr(value, "__next__"):
        yield from (tensor for item in value for tensor in tensors_in(item))


def storages_of(tensor: Tensor) -> list[torch.UntypedStorage]:
    """The storages that a tensor occupies here: of its own shard if it is distributed; none if it has no
    data.
    """
    local = getattr(tensor, "_local_tensor", tensor)
    if local.device.type == "meta":
        return []
    if local.layout is torch.sparse_coo:
        return [local._indices().untyped_storage(), local._values().untyped_storage()]
    return [local.untyped_storage()] if local.layout is torch.strided else []


def key_of(storage: torch.UntypedStorage) -> int:
    """What two tensors on one memory have in common, as long as either lives."""
    return storage._cdata
