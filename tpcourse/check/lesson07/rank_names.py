"""Which memory the names of a rank's cells keep: of functions that are running, and of the notebook."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from types import CellType, FrameType, FunctionType
from typing import Any

from torch import Tensor

from tpcourse.check import rank_side
from tpcourse.memory.storages import key_of, storages_of


def named_storages(more: Iterable[Any] = ()) -> set[int]:
    """Keys of all storages of which a local or global name has a tensor, also in lists, closures and objects."""
    todo: deque[Any] = deque([*_locals(), *rank_side.namespace().values(), *more])
    seen: set[int] = set()
    found: set[int] = set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            found.update(key_of(storage) for storage in storages_of(thing))
        todo.extend(_inside(thing))
    return found


def _locals() -> Iterator[Any]:
    """Of every function that is running, down to the probe."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "record":
        yield from frame.f_locals.values()
        frame = frame.f_back


def _inside(thing: Any) -> Iterable[Any]:
    """What a container, a function or an object of the notebook's own classes refers to."""
    if isinstance(thing, list | tuple | set | frozenset | deque):
        return thing
    if isinstance(thing, dict):
        return thing.values()
    if isinstance(thing, Tensor):
        return [thing.grad if thing.is_leaf else None, getattr(thing, "elem", None)]  # of a functional collective
    if isinstance(thing, FunctionType):
        return [*(thing.__closure__ or ()), *(thing.__defaults__ or ()), thing.__dict__]
    if isinstance(thing, CellType):
        return [thing.cell_contents] if thing != CellType() else []
    if isinstance(thing, partial):
        return [thing.func, thing.args, thing.keywords]
    return [vars(thing)] if type(thing).__module__ == "__main__" and hasattr(thing, "__dict__") else []
