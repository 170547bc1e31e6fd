"""`DataParallel`: gradients averaged in buckets, each of which leaves as soon as backward has filled it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from tpcourse.data.afterwards import require_bucket
from tpcourse.data.arrays import FlatGradients
from tpcourse.data.buckets import BYTES_PER_MB, Bucket, plan_buckets
from tpcourse.data.start import broadcast_module, broadcast_tensors
from tpcourse.wire.hooks import Companion, GradientHook
from tpcourse.wire.inputs import place

MOST_NAMES = 5


class DataParallel:
    """Averages a module's gradients over the ranks of `dp`, while backward runs.

    g = (1/p) sum_r g_r, as PyTorch's DistributedDataParallel (arXiv:2006.15704, section 3). The module is used
    as before: each weight gets a hook, forward gets nothing. Gradients of one dtype lie in one flat array that is
    cut into buckets. When backward has filled a bucket, and all before it have left, its all-reduce begins; after
    backward each `weight.grad` is a view of the averaged array.

    A tied weight is one weight. A frozen one has no gradient. A weight that backward does not reach is an
    error, or with `allow_unused` adds zeros; it keeps `grad = None` if no rank reached it.

    Traffic: at the start one broadcast for each dtype (see `broadcast_module`). In a step, for n bytes of
    gradients, 1 + ceil((n - first) / bucket) all-reduces, which is ceil(n / bucket) where the first bucket is as
    large as the others; 2(p-1)/p n bytes. Each further dtype takes ceil(n / bucket) for its own n bytes.
    `allow_unused` adds one element for each weight to n. Within `no_sync` nothing.
    Raises: ValueError if there is nothing to average, a bucket holds nothing, or weights lie on two devices; in
    backward, if a weight is not reached, or the last backward ended in an error.
    Trap: this is the whole batch's gradient only if all ranks have equally many examples; otherwise take the
    loss from `mean_over_ranks`. An MB is 10^6 bytes.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        dp: dist.ProcessGroup,
        bucket_mb: float = 25.0,
        first_bucket_mb: float = 1.0,
        allow_unused: bool = False,
    ) -> None:
        _, self.p = place(dp)
        self.module, self.dp, self.allow_unused = module, dp, allow_unused
        named = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.names, self.weights = list(named), list(named.values())
        _require_weights(module, self.weights)
        self._syncs = True
        self.cut(bucket_mb, first_bucket_mb)
        broadcast_module(module, dp=dp)
        self.gradients = FlatGradients(self.weights, self._num_flags)
        self._can_average = self.weights[0].is_cuda and "nccl" in dist.get_backend(dp)
        _remove_older(self.weights)
        self._hooks = [GradientHook(weight, self._arrived, index) for index, weight in enumerate(self.weights)]
        module.data_parallel = Companion(self)
        self._begin_step()

    def cut(self, bucket_mb: float, first_bucket_mb: float | None = None) -> None:
        """Cut the gradients into buckets of another size, between two steps; None makes the first as large."""
        require_bucket(bucket_mb, "bucket_mb")
        first_mb = bucket_mb if first_bucket_mb is None else require_bucket(first_bucket_mb, "first_bucket_mb")
        size, first = (min(mb * BYTES_PER_MB, self._most_bytes) for mb in (bucket_mb, first_mb))
        self.buckets = plan_buckets(self.weights, size, min(size, first), self._num_flags)
        self._homes: list[list[int]] = [[] for _ in self.weights]  # weight -> the buckets that it lies in
        for number, bucket in enumerate(self.buckets):
            for index in bucket.members:
                self._homes[index].append(number)
        self._begin_backward()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward within this block only adds to this rank's gradients: for all micro-batches but the last.

        Traffic: none.
        """
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def broadcast_buffers(self) -> None:
        """Give every rank the buffers of rank 0: running statistics drift apart, as gradients do not reach them.

        Traffic: one broadcast for each dtype.
        """
        broadcast_tensors(self.module.buffers(), dp=self.dp)

    def remove(self) -> None:
        """Take the hooks out: from now on gradients stay on their rank."""
        for hook in self._hooks:
            hook.remove()

    @property
    def num_bytes(self) -> int:
        """Bytes that a step averages."""
        return sum(bucket.num_bytes for bucket in self.buckets)

    def __repr__(self) -> str:
        size_mb = self.num_bytes / BYTES_PER_MB
        return f"DataParallel: {len(self.weights)} weights, {size_mb:.3g} MB of gradients, {len(self.buckets)} buckets"

    @property
    def _num_flags(self) -> int:
        return len(self.weights) if self.allow_unused else 0

    @property
    def _most_bytes(self) -> int:
        return sum(weight.nbytes for weight in self.weights) + 16 * (self._num_flags + 1)

    def _begin_step(self) -> None:
        """No weight was reached since the gradients were averaged."""
        self._reached: set[int] = set()
        self.gradients.blank.clear()
        self.gradients.flags.fill_(1)
        self._begin_backward()

    def _begin_backward(self) -> None:
        """No gradient has arrived, and no bucket has left."""
        self._here: set[int] = set()
        self._missing = [len(bucket.members) for bucket in self.buckets]
        self._under_way: list[dist.Work] = []

    def _arrived(self, index: int, _: nn.Parameter) -> None:
        """The hook: backward is done with this weight. Buckets that are full leave, in the same order everywhere."""
        self._reached.add(index)
        if not self._syncs:
            return
        self._require_first(index)
        if not self._here:
            Variable._execution_engine.queue_callback(self._finish)  # at the end of this backward
        self._here.add(index)
        for number in self._homes[index]:
            self._missing[number] -= 1
        while (number := len(self._under_way)) < len(self.buckets) and not self._missing[number]:
            self._under_way.append(self._leave(self.buckets[number]))

    def _leave(self, bucket: Bucket) -> dist.Work:
        """Begin the average of a bucket."""
        self.gradients.fill(bucket)
        return self._average(self.gradients.piece(bucket))

    def _average(self, piece: Tensor) -> dist.Work:
        """Begin an all-reduce; NCCL divides on the way."""
        if self._can_average:
            return dist.all_reduce(piece, op=dist.ReduceOp.AVG, group=self.dp, async_op=True)
        piece /= self.p
        return dist.all_reduce(piece, group=self.dp, async_op=True)

    @torch.no_grad()
    def _finish(self) -> None:
        """At the end of backward: what has not left leaves, and all are waited for."""
        unused = [index for index in range(len(self.weights)) if index not in self._reached]
        if unused and not self.allow_unused:
            self._stop(unused)
        if unused:
            self.gradients.flags[unused] = 0
        for bucket in self.buckets[len(self._under_way) :]:
            self._under_way.append(self._leave(bucket))
        self._wait()
        if unused:
            shares = self.gradients.flags.tolist()  # 0: no rank reached it, so no optimizer should
            for index in self.gradients.blank:
                if shares[index] == 0:
                    self.weights[index].grad = None
        self._begin_step()

    def _wait(self) -> None:
        for work in self._under_way:
            work.wait()

    def _stop(self, unused: Sequence[int]) -> None:
        self._wait()
        self._begin_step()
        raise ValueError(
            f"{len(unused)} of {len(self.weights)} weights got no gradient in this backward: "
            f"{_listed([self.names[index] for index in unused])}. Freeze them before DataParallel is made, or say "
            "DataParallel(..., allow_unused=True): then they add zeros, and leave last. A checkpoint within the "
            "model needs use_reentrant=False"
        )

    def _require_first(self, index: int) -> None:
        if index in self._here:
            raise ValueError(
                f"{self.names[index]!r} got a gradient in an earlier backward that never ended: buckets are half full, "
                "and some may have left on other ranks. Make a new DataParallel"
            )


def _require_weights(module: nn.Module, weights: Sequence[nn.Parameter]) -> None:
    if not weights:
        frozen = len(list(module.parameters()))
        fix = "let one require a gradient, requires_grad_()" if frozen else "give a module with parameters"
        raise ValueError(f"0 weights to train, {frozen} frozen: there is no gradient to average; {fix}")
    devices = sorted({str(weight.device) for weight in weights})
    if len(devices) > 1:
        raise ValueError(f"weights lie on {len(devices)} devices, {', '.join(devices)}: move the module to one")


def _remove_older(weights: Sequence[nn.Parameter]) -> None:
    """A weight is averaged once: the hooks of an earlier DataParallel go."""
    for weight in weights:
        for hook in list((weight._post_accumulate_grad_hooks or {}).values()):
            if isinstance(hook, GradientHook) and isinstance(hook.owner, DataParallel):
                hook.owner.remove()


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(map(repr, names[:MOST_NAMES])) + (f" and {more} more" if more > 0 else "")
