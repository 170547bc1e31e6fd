"""Averaging gradients after backward: a call for each parameter, and then few calls for all of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tpcourse.data.buckets import BYTES_PER_MB
from tpcourse.wire.inputs import place


def average_gradients(module: nn.Module, *, dp: dist.ProcessGroup) -> None:
    """Replace each gradient by its average over the ranks, one parameter after the other.

    g = (1/p) sum_r g_r. A tied weight is one parameter, and is averaged once.
    Traffic: one all-reduce for each parameter, 2(p-1)/p n bytes in all.
    Trap: a parameter that got no gradient on some ranks only leaves the others waiting.
    """
    _, p = place(dp)
    for weight in module.parameters():
        if weight.grad is not None:
            dist.all_reduce(weight.grad, group=dp)
            weight.grad /= p


def average_in_buckets(module: nn.Module, *, dp: dist.ProcessGroup, bucket_mb: float = 25.0) -> None:
    """The same averages in few calls: gradients are copied into one flat array, averaged in buckets, copied back.

    Traffic: ceil(n / bucket) all-reduces for each dtype, 2(p-1)/p n bytes in all, and two copies.
    Raises: ValueError if the bucket holds nothing.
    Trap: as `average_gradients`.
    """
    _, p = place(dp)
    require_bucket(bucket_mb, "bucket_mb")
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for weight in module.parameters():
        if weight.grad is not None:
            by_dtype.setdefault(weight.dtype, []).append(weight.grad)
    for dtype, gradients in by_dtype.items():
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])  # [n]
        size = min(flat.numel(), bucket_mb * BYTES_PER_MB // dtype.itemsize)
        for bucket in flat.split(max(1, int(size))):
            dist.all_reduce(bucket, group=dp)
        flat /= p
        for gradient, piece in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(piece.view_as(gradient))


def require_bucket(size_mb: float, name: str) -> float:
    """Raises: ValueError unless a bucket of this size holds something."""
    if isinstance(size_mb, bool) or not isinstance(size_mb, int | float) or not size_mb > 0:
        raise ValueError(
            f"{name} = {size_mb!r} holds no gradient: give megabytes above 0, such as {name}=25; "
            "a number above the model's bytes makes one bucket of all"
        )
    return size_mb
