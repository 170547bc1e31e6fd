"""Inputs as plain data: the notebook makes them without torch, and in a rank they arrive as what they stand for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Made:
    """Data on its way to a rank, where `kind` of `rank_objects` is made of it."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return build, (self.kind, self.data)

    def __getitem__(self, name: str) -> Any:
        return self.data[name]


def build(kind: str, data: dict[str, Any]) -> Any:
    """What a rank gets when it unpickles a `Made`: arrays are tensors on its device."""
    from tpcourse.check import rank_side

    tensors = {name: _to_tensor(value, rank_side) for name, value in data.items()}
    return getattr(importlib.import_module("tpcourse.check.lesson07.rank_objects"), kind)(**tensors)


def _to_tensor(value: Any, rank_side: Any) -> Any:
    if isinstance(value, dict):
        return {name: _to_tensor(item, rank_side) for name, item in value.items()}
    if isinstance(value, list):
        return [_to_tensor(item, rank_side) for item in value]
    return rank_side.to_tensors(value, rank_side._device()) if isinstance(value, np.ndarray) else value
