"""Hooks on gradients that do not keep alive what they belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from torch import nn


class GradientHook:
    """Calls `method(*args, weight)` as soon as backward has this weight's whole gradient.

    Trap: torch keeps such a hook in C++, where Python's collector does not look. A hook that held its owner, which
    holds the weight, would hold both for ever: gigabytes for each time that a cell is run again. So it holds the
    owner weakly, and does nothing when that is gone.
    """

    def __init__(self, weight: nn.Parameter, method: Callable[..., object], *args: Any) -> None:
        self.method, self.args = WeakMethod(method), args
        self.remove = weight.register_post_accumulate_grad_hook(self).remove

    @property
    def owner(self) -> Any:
        """The object whose method is called, or None."""
        return getattr(self.method(), "__self__", None)

    def __call__(self, weight: nn.Parameter) -> None:
        if (method := self.method()) is not None:
            method(*self.args, weight)


class Companion:
    """An attribute that lets a module keep an object alive; a copy of the module has none."""

    def __init__(self, owner: Any = None) -> None:
        self.owner = owner

    def __deepcopy__(self, memo: object) -> Companion:
        return Companion()

    def __reduce__(self) -> tuple[type[Companion], tuple[()]]:
        return Companion, ()
