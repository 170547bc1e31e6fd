"""Whether the functions of tpcourse, torch and Python in a rank are still those that it started with.

A print is a digest of the identities of all functions of some modules and classes; it is taken before the first answer
runs, and again around each check. What an answer defines for itself is not in it.
"""

from __future__ import annotations

import hashlib
from typing import Any

_KEPT = "_tpcourse_functions"


def prints(ranks: Any) -> list[str]:
    """A digest of each rank's functions."""
    return ranks.run(digest)


def differences(ranks: Any) -> list[str]:
    """The names of functions that were replaced in some rank; at least one sentence part."""
    found = sorted({name for names in ranks.run(replaced) for name in names})
    return found or ["functions that the check itself runs"]


def digest() -> str:
    """Runs in the rank: the digest, and at its first call the list that later names are found with."""
    import sys

    functions = collect()
    kept = sys.__dict__.setdefault(_KEPT, functions)
    known = {name: functions.get(name) for name in kept}
    return hashlib.sha256(repr(sorted(known.items())).encode()).hexdigest()


def replaced() -> list[str]:
    """Runs in the rank: names whose function is not the one that was there first."""
    import sys

    kept, now = getattr(sys, _KEPT, {}), collect()
    return [name for name, mark in kept.items() if now.get(name) != mark][:20]


def collect() -> dict[str, tuple[int, int]]:
    """`module.name` -> identity of the function and of its code."""
    import sys
    import types

    plain = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    wrapped = (staticmethod, classmethod, property)
    found: dict[str, tuple[int, int]] = {}
    watched = {
        "torch", "torch.distributed", "torch.distributed.distributed_c10d", "torch.autograd", "torch.autograd.function",
        "torch.nn.functional", "torch.autograd.graph", "builtins", "numpy", "hashlib", "types",
    }  # fmt: skip
    for name, module in list(sys.modules.items()):
        if name not in watched and not f"{name}.".startswith("tpcourse."):
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == name:
                for inner, part in list(vars(value).items()):
                    if isinstance(part, plain + wrapped):
                        found[f"{name}.{key}.{inner}"] = (id(part), id(getattr(part, "__code__", None)))
            elif isinstance(value, plain):
                found[f"{name}.{key}"] = (id(value), id(getattr(value, "__code__", None)))
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    for inner, part in list(vars(tensor).items()) if tensor else ():
        if isinstance(part, plain + wrapped):
            found[f"torch.Tensor.{inner}"] = (id(part), id(getattr(part, "__code__", None)))
    return found
