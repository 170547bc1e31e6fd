"""Whether the functions of tpcourse, torch and Python in a rank are still those that it started with.

Their identities are noted before the first answer runs, and compared around each check; what an answer defines for
itself does not count. `look` travels to the rank as code and names nothing of this module, so that replacing this
module changes nothing.
"""

from __future__ import annotations

import hashlib
from typing import Any

Marks = dict[str, tuple[int, int]]


def prints(ranks: Any) -> list[Marks]:
    """Each rank's functions: name -> identity of the function and of its code."""
    return ranks.run(look, "")


def differences(ranks: Any, before: list[Marks], nonce: str) -> list[str]:
    """The names of functions that were replaced in some rank since `before`; nothing if all are there."""
    digests = ranks.run(look, nonce, [sorted(marks) for marks in before])
    if all(digest_of(marks, nonce) == digest for marks, digest in zip(before, digests, strict=True)):
        return []
    names: set[str] = set()
    for marks, now in zip(before, prints(ranks), strict=True):
        names |= {name for name, mark in marks.items() if now.get(name) != mark}
    return sorted(names) or ["functions that the check itself runs"]


def digest_of(marks: Marks, nonce: str) -> str:
    """What a rank with these functions answers."""
    return hashlib.sha256(f"{nonce}{sorted(marks.items())}".encode()).hexdigest()


def look(nonce: str, names: Any = None) -> Any:
    """Runs in the rank: all functions; or, for a nonce, the digest of those named for this rank."""
    import hashlib
    import os
    import sys
    import types

    import torch

    kinds = (
        types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
        staticmethod, classmethod, property,
    )  # fmt: skip
    watched = {
        "torch", "torch.distributed", "torch.distributed.distributed_c10d", "torch.autograd", "torch.autograd.function",
        "torch.nn.functional", "torch.autograd.graph", "builtins", "numpy", "hashlib", "types",
    }  # fmt: skip
    here = os.path.dirname(torch.__file__) + os.sep
    owners = {"torch.Tensor": vars(torch.Tensor)}
    for name, module in list(sys.modules.items()):
        if name in watched or f"{name}.".startswith("tpcourse."):
            inner = {
                f"{name}.{k}": vars(v) for k, v in vars(module).items() if isinstance(v, type) and v.__module__ == name
            }
            owners |= {name: vars(module), **inner}
    found = {}
    for owner, entries in owners.items():
        lazy = owner.startswith("torch") and not f"{owner}.".startswith("torch.distributed.")
        for name, value in list(entries.items()):
            if isinstance(value, kinds):
                code = getattr(value, "__code__", None)
                # torch replaces some of its functions when it first needs them; none that send
                is_torch_s = lazy and code is not None and code.co_filename.startswith(here)
                found[f"{owner}.{name}"] = (0, 0) if is_torch_s else (id(value), id(code))
    if not nonce:
        return found
    known = {name: found.get(name) for name in names[torch.distributed.get_rank()]}
    return hashlib.sha256(f"{nonce}{sorted(known.items())}".encode()).hexdigest()


def made_calls() -> int:
    """Runs in the rank: how many calls its groups have made, as counted by torch's C++ code, not by the ledger."""
    import torch.distributed as dist

    return sum(group._get_sequence_number_for_group() for group in dist.distributed_c10d._world.pg_map)
