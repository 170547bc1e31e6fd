"""ZeRO stage 1: each rank holds 1/p of the Adam states and master weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from tpcourse.zero.calls import scatter_average, wait_for
from tpcourse.zero.flat import Flat
from tpcourse.zero.pieces import Pieces
from tpcourse.zero.plan import Named, buckets


class Zero1(Pieces):
    """Average the gradients, step this rank's piece of the weights, gather the pieces of all.

    ZeRO, stage 1 (Rajbhandari and others, arXiv:1910.02054, section 5.1). `optimizer` is torch's, any that treats each
    element alone and counts steps in its states; it gets one flat tensor for each bucket and group. `groups` are
    torch's parameter groups. Weights below 4 bytes have a float32 master copy. `finish(weights)` gets each gradient
    once, before it is averaged, to add it up over `tp`; its calls depend on no bucket: ranks of `tp` may cut others.

    Memory: 2 + 2 + 12/p bytes a weight in bfloat16. A step goes bucket by bucket and needs 12 bytes more for each
    element of a bucket's piece: the gradient in float32, and two arrays in which AdamW computes.
    Traffic: a step sends 2 (p-1)/p P elements: a reduce-scatter and an all-gather for each bucket; padding adds
    less than p elements for each. At the start one broadcast for each bucket, frozen weight and buffer.
    Raises: ValueError for groups that do not cover the module, or a bucket that holds nothing.
    Trap: a weight that backward does not reach has a gradient of zero, so weight decay and momentum move it. Frozen
    weights stay whole on each rank. The module must not be moved or cast afterwards. Hooks on the
    optimizer's step run once for each bucket.
    """

    def _lots(self, weights: Named) -> list[Named]:
        """Which weights share a flat array."""
        return buckets(weights, self.bucket_mb)

    @torch.no_grad()
    def step(self) -> None:
        """One step: gradients to their owners, each owner's Adam, weights to everybody."""
        self.reduce()
        for flat in self.flats:  # one by one: torch skips those that have no gradient
            flat.lend()
            self.optimizer.step()
            flat.settle()
        self._spread()

    @torch.no_grad()
    def reduce(self) -> None:
        """Average what backward left in `grad`, bucket by bucket; each rank keeps its piece, `grad` is None."""
        if any(weight.grad is not None for weight in self.trained):
            self._finish(self.trained)
            for flat in self.flats:
                self._leave(flat)
        self._arrive()

    def _finish(self, weights: Iterable[nn.Parameter]) -> None:
        """Add up over `tp` the gradients that are here."""
        here = [weight for weight in weights if weight.grad is not None]
        if self.finish is not None and here:
            self.finish(here)

    def _leave(self, flat: Flat) -> None:
        """Begin to average a bucket, when the one before it is done: two are never there at a time."""
        self._arrive()
        array = flat.joined([weight.grad for weight in flat.weights])  # [p n]
        for weight in flat.weights:
            weight.grad = None
        self._under_way = (flat, array, *scatter_average(array, dp=self.dp))

    def _arrive(self) -> None:
        if self._under_way is not None:
            flat, _, gradient, work = self._under_way  # the array stays until it is sent
            wait_for(work)
            flat.add(gradient)
        self._under_way = None

    def _spread(self) -> None:
        """Give the new pieces to all ranks."""
        for flat in self.flats:
            flat.start_gather()
        for flat in self.flats:
            flat.wait()
