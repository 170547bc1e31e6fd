"""Gradients as one flat array for each dtype, with a view of it for each weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tpcourse.data.buckets import Bucket


class FlatGradients:
    """The flat arrays of some weights' gradients, the last weight first, and `num_flags` elements at the end.

    `views[i]` has the shape of weight i. `flags` lie behind the gradient of weight 0.
    Traffic: none.
    """

    def __init__(self, weights: Sequence[nn.Parameter], num_flags: int = 0) -> None:
        self.weights = list(weights)
        dtypes = [weight.dtype for weight in reversed(self.weights)]
        sizes = {dtype: sum(w.numel() for w in self.weights if w.dtype == dtype) for dtype in dtypes}
        last, device = dtypes[-1], self.weights[0].device
        self.flat = {
            dtype: torch.zeros(size + num_flags * (dtype == last), dtype=dtype, device=device)
            for dtype, size in sizes.items()
        }
        self.flags = self.flat[last][sizes[last] :]
        self.views = self._cut_views()
        self.blank: set[int] = set()  # weights without a gradient, for which zeros travelled

    def _cut_views(self) -> list[Tensor]:
        ends, views = dict.fromkeys(self.flat, 0), []
        for weight in reversed(self.weights):
            start = ends[weight.dtype]
            ends[weight.dtype] = start + weight.numel()
            views.append(self.flat[weight.dtype][start : ends[weight.dtype]].view(weight.shape))
        return views[::-1]

    def piece(self, bucket: Bucket) -> Tensor:
        """The elements of a bucket: [end - start], a view."""
        return self.flat[bucket.dtype][bucket.start : bucket.end]

    def fill(self, bucket: Bucket) -> None:
        """Bring the gradients of a bucket's members into the array, and make each `grad` its view.

        Autograd puts a first gradient into memory of its own: those are copied, all in one kernel. Where `grad`
        is the view already, backward has added in place and there is nothing to do. No gradient is zeros.
        """
        fresh = []
        for index in bucket.members:
            weight, view = self.weights[index], self.views[index]
            if weight.grad is None:
                view.zero_()
                self.blank.add(index)
            elif weight.grad is not view:
                fresh.append((view, weight.grad))
            weight.grad = view  # also tells the next bucket of a weight that is cut in two: it may be under way
        if fresh:
            views, gradients = zip(*fresh, strict=True)
            torch._foreach_copy_(views, gradients)
