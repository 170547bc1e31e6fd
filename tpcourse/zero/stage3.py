"""ZeRO stage 3: stage 2, and each rank keeps 1/p of the weights too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tpcourse.memory.storages import tensors_in
from tpcourse.zero.plan import Named, default_layers, owners, together
from tpcourse.zero.stage2 import Zero2


class Zero3(Zero2):
    """The edit: weights are gathered a layer at a time, just before forward or backward needs them, and freed after.

    ZeRO, stage 3 (arXiv:1910.02054, section 5.3). `layers` are parts of the module in the order in which forward
    calls them; by default the members of its lists of modules. Other weights, and those tied across layers, are
    layer 0: there while the module runs. `prefetch`: when a layer begins, the next one's gather does too.

    Memory: 16/p bytes a weight in bfloat16, layer 0, and two layers of weights and gradients.
    Traffic: 3 (p-1)/p P elements: an all-gather of each layer forward, one backward and a reduce-scatter.
    Raises: as `Zero2`, and ValueError for layers within each other or not in the module.
    Trap: between calls weights have no memory: read them within `whole()`. All ranks must call the same layers in
    the same order, and use weights only within the forward of their layer.
    """

    keeps_whole = False

    def __init__(
        self, module: nn.Module, *, layers: Sequence[nn.Module] | None = None, prefetch: bool = True, **options: Any
    ) -> None:
        given = default_layers(module) if layers is None else layers
        self.layers = [module, *dict.fromkeys(given)]
        self.prefetch = prefetch
        self._home = owners(self.layers)
        super().__init__(module, **options)
        self._parts = [[f for f in self.flats if self._home[id(f.weights[0])] == i] for i in range(len(self.layers))]
        for number, layer in enumerate(self.layers):
            self._hooks.append(layer.register_forward_pre_hook(partial(self._before_forward, number), prepend=True))
            self._hooks.append(layer.register_forward_hook(partial(self._after_forward, number)))
        self._release(*range(len(self.layers)))

    def _lots(self, weights: Named) -> list[Named]:
        return together(weights, [(weight.dtype, self._home[id(weight)]) for weight in weights.values()])

    def _spread(self) -> None:
        """Nothing: forward gathers the new pieces."""

    def _begin_backward(self) -> None:
        super()._begin_backward()
        self._in_backward: set[int] = set()
        self._waiting = Counter(self._home[id(weight)] for flat in self.flats for weight in flat.weights)

    def _need(self, number: int, following: int) -> None:
        """A layer begins: its weights must be here, and the next one's should be on their way."""
        for flat in self._parts[number]:
            if not flat.is_here:
                flat.start_gather()
        for flat in self._parts[following] if self.prefetch and 0 < following < len(self.layers) else []:
            if not flat.is_here:
                flat.start_gather()
        for flat in self._parts[number]:
            flat.wait()

    def _release(self, *numbers: int) -> None:
        for number in numbers:
            for flat in self._parts[number]:
                flat.release()

    @torch.no_grad()
    def _before_forward(self, number: int, layer: nn.Module, inputs: Any) -> None:
        if number not in self._in_backward:  # else it is computed again, and backward has gathered it
            self._need(number, number + 1)

    def _after_forward(self, number: int, layer: nn.Module, inputs: Any, outputs: Any) -> None:
        if number in self._in_backward:
            return
        self._release(*(range(len(self.layers)) if number == 0 else [number]))
        for output in tensors_in(outputs):
            if output.requires_grad:
                output.register_hook(partial(self._before_backward, number))

    @torch.no_grad()
    def _before_backward(self, number: int, _: Tensor) -> None:
        """The gradient of a layer's output is here: backward goes through the layer next."""
        self._enter()
        if number not in self._in_backward:
            self._in_backward.add(number)
            self._need(number, number - 1 if number else len(self.layers) - 1)

    @torch.no_grad()
    def _arrived(self, number: int, weight: nn.Parameter) -> None:
        home = self._home[id(weight)]
        self._waiting[home] -= 1
        if not self._waiting[home]:
            self._release(home)  # backward is through the layer: before its gradients are copied
        super()._arrived(number, weight)

    @torch.no_grad()
    def _end(self) -> None:
        self._release(*range(len(self.layers)))
        super()._end()

    @contextmanager
    def whole(self) -> Iterator[None]:
        for number in range(len(self.layers)):
            self._need(number, 0)
        try:
            yield
        finally:
            self._release(*range(len(self.layers)))
