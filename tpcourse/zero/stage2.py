"""ZeRO stage 2: stage 1, and each rank keeps 1/p of the gradients too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable

from tpcourse.wire.hooks import GradientHook
from tpcourse.zero.stage1 import Zero1


class Zero2(Zero1):
    """The edit: a bucket's gradients leave as soon as backward has all of them, and not after it.

    ZeRO, stage 2 (arXiv:1910.02054, section 5.2): reduce-scatter bucket by bucket, in one order on all ranks; the
    whole gradients of a bucket are then freed, and the average is added to this rank's piece. `finish` gets a gradient
    when backward has it.

    Memory: 2 + 2/p + 12/p bytes a weight in bfloat16, and at most two buckets of gradients on the way.
    Traffic: that of stage 1; each further backward before a step sends (p-1)/p P more. Within `no_sync` nothing, but
    whole gradients stay.
    Raises: as `Zero1`; in backward, ValueError if the last one ended in an error.
    Trap: as `Zero1`. After backward `grad` is None: the gradient is in the pieces, so clip with `clip`.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self._syncs = True
        self._hooks: list[Any] = [
            GradientHook(weight, self._arrived, number)
            for number, flat in enumerate(self.flats)
            for weight in flat.weights
        ]
        self._begin_backward()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward within this block only adds to this rank's whole gradients: for all micro-batches but the last."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def remove(self) -> None:
        """Take the hooks out of the module."""
        for hook in self._hooks:
            hook.remove()

    def _begin_backward(self) -> None:
        """No gradient is here, and no bucket has left."""
        self._runs = False
        self._here: set[nn.Parameter] = set()
        self._missing = [len(flat.weights) for flat in self.flats]
        self._left = 0

    def _enter(self) -> None:
        """Backward has begun: `_end` is called when it is over."""
        if not self._runs:
            Variable._execution_engine.queue_callback(self._end)
        self._runs = True

    @torch.no_grad()
    def _arrived(self, number: int, weight: nn.Parameter) -> None:
        """The hook: this weight's gradient is complete. Buckets that are full leave, in the same order everywhere."""
        self._require_first(number, weight)
        self._enter()
        self._here.add(weight)
        self._missing[number] -= 1
        if self._syncs:
            self._finish([weight])
        while self._syncs and self._left < len(self.flats) and not self._missing[self._left]:
            self._leave(self.flats[self._left])
            self._left += 1

    @torch.no_grad()
    def _end(self) -> None:
        """Backward is over: the other buckets leave, with zeros for weights that were not reached."""
        if self._syncs:
            self._finish(weight for weight in self.trained if weight not in self._here)
        for flat in self.flats[self._left :] if self._syncs else []:
            self._leave(flat)
        self._arrive()
        self._begin_backward()

    def _require_first(self, number: int, weight: nn.Parameter) -> None:
        if weight in self._here:
            flat = self.flats[number]
            name = flat.names[[weight is other for other in flat.weights].index(True)]
            raise ValueError(
                f"{name!r} got a gradient in an earlier backward that never ended: some buckets have left, on this "
                "rank or on others. Load the last save"
            )
