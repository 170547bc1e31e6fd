"""Gradients that are about to be added up over ranks: sorted, so that few calls carry all of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def gradients_by_dtype(gradients: Iterable[Tensor | None]) -> dict[torch.dtype, list[Tensor]]:
    """The gradients of each dtype, in their order; None is skipped.

    Raises: ValueError for a weight in the place of its gradient.
    """
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for gradient in gradients:
        if gradient is not None and gradient.requires_grad:
            raise ValueError(
                f"a tensor of shape {list(gradient.shape)} requires a gradient, so it is a weight and its values would "
                "be added up: give weight.grad"
            )
        if gradient is not None:
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
    return by_dtype
