"""Whether functions of tpcourse, torch and Python in a rank, and the course's classes, are those that it started with.

Their identities are noted before the first answer runs, and compared around each check; what an answer defines for
itself does not count. `look` and its pieces travel to the rank as code and name nothing of this module, so that
replacing this module changes nothing. They look at functions in modules and classes, at the course's classes and what
it names in capitals, at objects in whose dict a function hides a method, and at what stands between them and the start
of their thread: whoever calls `look` in order to give another answer is seen there. They are called by two roads: as a
check calls a rank, and by ipyparallel alone.
"""

from __future__ import annotations

import hashlib
import marshal
import secrets
from collections.abc import Callable
from typing import Any

Marks = dict[str, tuple[int, int]]
Road = Callable[..., list[Any]]
UNSAID = "functions that the check itself runs"
MODULES = (
    "torch", "torch.autograd", "torch.autograd.function", "torch.autograd.graph", "torch.nn.functional",
    "torch.distributed", "torch.distributed.distributed_c10d", "torch._C._distributed_c10d", "numpy", "builtins",
    "types", "hashlib", "importlib", "importlib._bootstrap", "inspect", "contextlib", "copy", "pickle", "_pickle",
    "functools", "gc", "threading", "queue", "dataclasses", "weakref", "marshal", "IPython", "IPython.core.getipython",
    "IPython.core.interactiveshell", "ipykernel.ipkernel", "ipykernel.kernelbase", "ipykernel.zmqshell",
    "ipyparallel.engine.kernel", "ipyparallel.serialize", "ipyparallel.serialize.serialize",
    "ipyparallel.serialize.canning",
)  # fmt: skip
"""What a check goes through in a rank, beside all of tpcourse."""
WATCHED = ("tpcourse", "torch.Tensor.", "torch._C.", "<")  # where a new name is somebody's, too


class Intact:
    """What the ranks' functions were, by road and rank."""

    def __init__(self, ranks: Any) -> None:
        self.roads: list[Road] = [ranks.run, _past_the_engine(ranks)]
        self.known: list[list[Marks]] = [road(look, "", PIECES) for road in self.roads]

    def differences(self, roads: int = 2) -> list[str]:
        """The names of functions that were replaced or slipped in, in some rank; nothing if all is as it was. Looks by
        so many roads; nobody knows by which.
        """
        chosen = secrets.SystemRandom().sample(range(len(self.roads)), roads)
        return sorted({name for number in chosen for name in self._differences(number)})

    def _differences(self, number: int) -> set[str]:
        road = self.roads[number]
        for _ in range(3):
            nonce = secrets.token_hex(8)
            if road(look, nonce, PIECES) == [digest_of(marks, nonce) for marks in self.known[number]]:
                return set()
            now = road(look, "", PIECES)
            if names := set().union(*map(changed, self.known[number], now)):
                return names
            self.known[number] = now
        return {UNSAID}


def _past_the_engine(ranks: Any) -> Road:
    """On the thread that takes ipyparallel's messages, with nothing of tpcourse in between."""

    def road(function: Any, *args: Any) -> list[Any]:
        started = [ranks.client.direct_view(number).apply_async(function, *args) for number in ranks.cluster.ids]
        return ranks.cluster.gather(started, 60.0)

    return road


def changed(known: Marks, now: Marks) -> set[str]:
    """Names whose function is another one or gone, and new names where nothing new is due. Elsewhere a module that is
    imported late brings new names, and a lazy package brings functions that were there.
    """
    usual = set(known.values())
    gone = {name for name, mark in known.items() if now.get(name) != mark and not name.startswith("<stack")}
    new = {name for name, mark in now.items() if name not in known and mark not in usual}
    return gone | {name for name in new if name.startswith(WATCHED) and not name.startswith("tpcourse.draw")}


def digest_of(marks: Marks, nonce: str) -> str:
    """What a rank with these functions answers."""
    return hashlib.sha256(nonce.encode() + marshal.dumps(sorted(marks.items()), 2)).hexdigest()


def look(nonce: str, pieces: Any) -> Any:
    """Runs in the rank: all marks; or, for a nonce, their digest."""
    import hashlib
    import marshal

    modules, owners, functions, hiding, around = pieces
    found = {**functions(owners(modules)), **hiding(), **around()}
    if not nonce:
        return found
    return hashlib.sha256(nonce.encode() + marshal.dumps(sorted(found.items()), 2)).hexdigest()


def owners(modules: tuple[str, ...]) -> Any:
    """Runs in the rank: these modules, all of tpcourse, and their classes, by name."""
    import sys

    import torch

    found = {"torch.Tensor": vars(torch.Tensor)}
    for name, module in list(sys.modules.items()):
        if module and (name in modules or f"{name}.".startswith("tpcourse.")):
            found[name] = vars(module)
            for inner in list(vars(module).values()):
                if issubclass(type(inner), type) and inner.__module__ == name:
                    found[f"{name}.{inner.__qualname__}"] = vars(inner)
    return found


def functions(owners: Any) -> Marks:
    """Runs in the rank: owner and name -> identity of a function and its code, or of the course's class or constant."""
    import os
    import types

    import torch

    kinds = (
        types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
        staticmethod, classmethod, property,
    )  # fmt: skip
    found, here = {}, os.path.dirname(torch.__file__) + os.sep
    for owner, entries in owners.items():
        lazy = owner.startswith("torch") and not f"{owner}.".startswith("torch.distributed.")
        is_ours = f"{owner}.".startswith("tpcourse.")
        for name, value in list(entries.items()):
            if issubclass(type(value), kinds) or (is_ours and (issubclass(type(value), type) or name.isupper())):
                code = getattr(value, "__code__", None)
                # torch replaces some of its functions when it first needs them; none that send
                is_torch_s = lazy and code is not None and code.co_filename.startswith(here)
                found[f"{owner}.{name}"] = (0, 0) if is_torch_s else (id(value), id(code))
    return found


def hiding() -> Marks:
    """Runs in the rank: functions in an object's own dict that hide a method, in the engine and the ledger."""
    import types

    from IPython import get_ipython

    from tpcourse import ledger

    shell = get_ipython()
    found, seen, todo = {}, set(), [shell, shell.kernel, shell.tpcourse_rank, *ledger._installed]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type) or not hasattr(one, "__dict__"):
            continue
        seen.add(id(one))
        for name, value in list(vars(one).items()):
            if isinstance(value, types.FunctionType | types.MethodType) and hasattr(type(one), name):
                found[f"<{type(one).__name__}.{name}>"] = (id(value), id(value.__code__))
            if type(value).__module__.startswith("tpcourse."):
                todo.append(value)
    return found


def around() -> Marks:
    """Runs in the rank: what called `look`, and what is called at every step."""
    import gc
    import sys
    import threading

    hooks = {"settrace": sys.gettrace(), "setprofile": sys.getprofile()}
    hooks |= {"threading.settrace": threading.gettrace(), "threading.setprofile": threading.getprofile()}
    found = {f"<{name}>": (0 if hook is None else id(hook), 0) for name, hook in hooks.items()}
    found |= {f"<gc.callbacks {number}>": (id(call), 0) for number, call in enumerate(gc.callbacks)}
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        mark = hash(code.co_code) if code.co_filename.startswith("<") else id(code)
        found[f"<stack: {code.co_filename} {code.co_name}>"] = (mark, 0)
        frame = frame.f_back
    return found


PIECES = (MODULES, owners, functions, hiding, around)
