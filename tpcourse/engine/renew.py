"""After groups were left and made again: what a learner's variables hold of the old ones becomes the new ones."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

from torch import nn
from torch.distributed import device_mesh, distributed_c10d

DEEPEST = 100
OURS = ("__main__", "tpcourse")


class Renewal:
    """One walk over variables. `fresh`: id of an old group -> the group that takes its place.

    Looks into dicts, lists, tuples, modules and objects of the learner's and of the course's classes, however deep;
    not into functions, nor into objects of other libraries.
    """

    def __init__(self, fresh: dict[int, Any]) -> None:
        self.fresh = fresh
        self.seen: set[int] = set()

    def of(self, value: Any, depth: int = 0) -> Any:
        """The value, or what takes its place; what it holds is changed in place."""
        if id(value) in self.fresh:
            return self.fresh[id(value)]
        if id(value) in self.seen or depth > DEEPEST:
            return value
        self.seen.add(id(value))
        if isinstance(value, device_mesh.DeviceMesh):
            _refresh_mesh(value)
        if isinstance(value, tuple):
            return self._tuple(value, depth)
        inside = value if isinstance(value, dict | list) else vars(value) if _has_attributes(value) else {}
        for key, item in list(enumerate(inside) if isinstance(inside, list) else inside.items()):
            renewed = self.of(item, depth + 1)
            if renewed is not item:
                inside[key] = renewed
        return value

    def _tuple(self, value: tuple, depth: int) -> tuple:
        items = [self.of(item, depth + 1) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def _has_attributes(value: Any) -> bool:
    """Whether a group may be an attribute of it: a module, or an object of a class from no installed library."""
    if isinstance(value, type | ModuleType | FunctionType) or not hasattr(value, "__dict__"):
        return False
    name = type(value).__module__
    home = name.partition(".")[0]
    if isinstance(value, nn.Module) or home in OURS:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or "site-packages"
    return home not in sys.stdlib_module_names and "site-packages" not in file and "dist-packages" not in file


def _refresh_mesh(mesh: Any) -> None:
    """Meshes find their groups by name; the names are the same again, only a cache of groups has to follow."""
    registry = getattr(mesh, "_pg_registry", {})
    for name in list(registry):
        registry[name] = distributed_c10d._resolve_process_group(name)
