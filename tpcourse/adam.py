"""Mixed-precision Adam, made of torch's own: the model in bfloat16, the optimizer in float32."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

WIDE = 4  # bytes an element from which a parameter is its own master copy


class MixedAdam:
    """Adam in float32 for parameters of fewer bytes: 4 bytes of master copy and 4 + 4 of moments each.

    Every step widens the gradients, lets `torch.optim.Adam` step the master copy, and rounds that to the
    model's dtype (Micikevicius and others, arXiv:1710.03740). `keep_master=False` makes the copy anew from
    the model in each step and drops it: 12 bytes a parameter instead of 16.

    Raises: ValueError if no parameter requires a gradient.
    Trap: without a master copy, steps below the spacing of the model's numbers are rounded away: they are
    lost, each of them, however many there are.
    """

    def __init__(self, parameters: Iterable[Tensor], *, keep_master: bool = True, **options: Any) -> None:
        given = list(parameters)
        self.parameters = [p for p in given if p.requires_grad]
        if not self.parameters:
            raise ValueError(f"0 of {len(given)} parameters require a gradient: give model.parameters()")
        self.keep_master = keep_master
        self.master = [p if p.element_size() >= WIDE else self._copy(p) for p in self.parameters]
        self.adam = torch.optim.Adam(self.master, **options)

    def _copy(self, p: Tensor) -> Tensor:
        return (
            p.detach().float() if self.keep_master else torch.empty(0, dtype=torch.float32, device=p.device)
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """What torch's Adam steps: the master copies."""
        return self.adam.param_groups

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """The moments, as torch's Adam keeps them."""
        return self.adam.state

    @torch.no_grad()
    def step(self) -> None:
        """One step for every parameter that has a gradient."""
        pairs = [(p, m) for p, m in zip(self.parameters, self.master, strict=True) if m is not p]
        for p, m in pairs:
            m.data = m.data if self.keep_master else p.float()
            m.grad = None if p.grad is None else p.grad.float()
        self.adam.step()
        for p, m in pairs:
            p.copy_(m)
            m.grad = None
            m.data = m.data if self.keep_master else m.new_empty(0)

    def zero_grad(self) -> None:
        """Drop the gradients: their memory is free for the next forward."""
        for p in self.parameters:
            p.grad = None
