"""An unpickler for what ranks answer: numbers, text, arrays, records of checks and ledger. It calls nothing else.

pickle itself runs whatever its bytes name, so a rank could run code in the kernel that judges it.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import is_dataclass
from typing import Any

BUILTINS = {"set", "frozenset", "complex", "bytearray", "slice", "range", "dict", "list", "tuple", "str", "bytes"}
NAMES = {
    "numpy": {"ndarray", "dtype"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.numeric": {"_frombuffer"},
    "_codecs": {"encode"},
    "collections": {"OrderedDict", "deque"},
    "ipyparallel.serialize.canning": {"CannedArray", "CannedBytes", "CannedBuffer", "CannedMemoryView"},
    "builtins": BUILTINS,
    "tpcourse.costs.measured": {"Measurement"},
    "tpcourse.ledger.log": {"Log"},
    "tpcourse.ledger.event": {"Event"},
}


class Plain(pickle.Unpickler):
    """Refuses every name that is not plain data."""

    def find_class(self, module: str, name: str) -> Any:
        if name in NAMES.get(module, ()) and "." not in name:
            return super().find_class(module, name)
        if module.startswith("tpcourse.check.") and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and is_dataclass(found) and found.__module__ == module:
                return found  # a record: to make one does nothing
        raise pickle.UnpicklingError(f"a rank answered with {module}.{name}, which is no plain data")


class Refused(str):
    """In the place of an answer that is no plain data: whoever looks into it learns why. (ipyparallel would wait.)"""

    def __getitem__(self, key: Any) -> Any:
        raise TypeError(str(self))

    def get(self, key: Any, default: Any = None) -> Any:
        raise TypeError(str(self))


def loads(data: Any, **_: Any) -> Any:
    """As pickle.loads, for plain data."""
    return Plain(io.BytesIO(data)).load()


def loads_or_refuses(data: Any, **_: Any) -> Any:
    """As `loads`; a `Refused` for anything else."""
    try:
        return loads(data)
    except Exception as error:  # broken bytes too
        return Refused(f"{error}")


class Pickle:
    """Stands in for the module pickle where ipyparallel reads answers."""

    def __getattr__(self, name: str) -> Any:
        return loads_or_refuses if name == "loads" else getattr(pickle, name)


def install() -> None:
    """Let ipyparallel in this process read plain data only."""
    import ipyparallel.serialize.serialize as serialize

    serialize.pickle = Pickle()
