"""The three products of a linear layer, each one matrix product, whatever dims stand before the last."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def rows(x: Tensor) -> Tensor:
    """[.., D] -> [N, D]: a view where x is contiguous."""
    return x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y = x W^T + b. Shapes: [.., in], [out, in], [out] -> [.., out]."""
    return F.linear(rows(x), weight, bias).view(*x.shape[:-1], weight.shape[0])


def input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    """dx = dy W. Shapes: [.., out], [out, in] -> [.., in]."""
    return (rows(dy) @ weight).view(*dy.shape[:-1], weight.shape[1])


def weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """dW = dy^T x, summed over all tokens. Shapes: [.., out], [.., in] -> [out, in]."""
    return rows(dy).T @ rows(x)


def bias_gradient(dy: Tensor) -> Tensor:
    """db = dy, summed over all tokens. Shapes: [.., out] -> [out]."""
    return rows(dy).sum(0)
