"""Gradients of weights that every rank holds whole, and that saw only this rank's tokens."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.wire.gradients import gradients_by_dtype
from tpcourse.wire.inputs import place


@torch.no_grad()
def sum_gradients(gradients: Iterable[Tensor | None], *, tp: dist.ProcessGroup | None) -> None:
    """Add up each gradient over the ranks, in place: once a step, after the last backward.

    A norm's scale g meets every token t: dg = sum_t dy_t x_t, and each rank has the part of its own tokens. The
    same holds for a bias that is added to a rank's tokens. It is a sum and no average, if the loss is
    that of all tokens. All gradients travel together, as one flat array; None is skipped.
    Traffic: one all-reduce for each dtype, 2(p-1)/p n bytes in all, whatever the number of weights.
    Raises: ValueError for a weight in the place of its gradient.
    Trap: called twice, gradients are p times too large. All ranks must give the same gradients in the same order.
    Where one has None and another a gradient their flat arrays differ, and the sum mixes up weights or the
    call never ends: give zeros there.
    """
    if tp is None:
        return
    place(tp)
    for alike in gradients_by_dtype(gradients).values():
        flat = torch.cat([gradient.reshape(-1) for gradient in alike])  # [n]
        dist.all_reduce(flat, group=tp)
        pieces = flat.split([gradient.numel() for gradient in alike])
        torch._foreach_copy_(alike, [piece.view_as(g) for piece, g in zip(pieces, alike, strict=True)])
