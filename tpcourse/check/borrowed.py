"""Whether an answer calls a finished kernel of `tpcourse.wire` instead of writing it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

ALLOWED = {"exchange", "send", "receive"}
KERNELS = "tpcourse.wire"


def borrowed_kernel(function: Any) -> str:
    """The name of a kernel that a function is, or mentions, directly or by a helper of the notebook; "" if none."""
    return _search(function, set())


def _search(function: Any, seen: set[int]) -> str:
    if id(function) in seen:
        return ""
    seen.add(id(function))
    if (getattr(function, "__module__", None) or "").startswith(KERNELS):
        name = getattr(function, "__name__", "")
        return "" if name in ALLOWED else f"{KERNELS}.{name}"
    if not isinstance(function, FunctionType) or function.__module__.startswith(("torch", "tpcourse")):
        return ""
    return next((name for found in _mentioned(function) if (name := _search(found, seen))), "")


def _mentioned(function: FunctionType) -> Iterator[Any]:
    """The functions that a function's code names: its globals, and attributes of `tpcourse.wire`."""
    names = set(_names(function.__code__))
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    yield from (value for value in values if callable(value))
    values += [sys.modules[name] for name in names if name in sys.modules]  # imports inside the function
    modules = [value for value in values if isinstance(value, ModuleType) and value.__name__.startswith("tpcourse")]
    wire = [module for module in modules if module.__name__.startswith(KERNELS)]
    wire += [sys.modules[KERNELS] for _ in modules if KERNELS in sys.modules and "wire" in names]
    yield from (getattr(module, name) for module in wire for name in names if callable(getattr(module, name, None)))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
