"""The products of a linear layer, each one matrix product whatever dims stand before the last, and products of blocks.

A block is [b, R, in]: R rows of each of b sequences, a view of a larger array. Its product is written where it belongs.
"""

from __future__ import annotations

import torch
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


def write_product(block: Tensor, matrix: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
    """out = block M + b. Shapes: [b, R, in], [in, out], [b, R, out], [out]; out may be a view with gaps."""
    if len(block) != 1:
        torch.bmm(block, matrix.expand(len(block), -1, -1), out=out)
        if bias is not None:
            out += bias
    elif bias is None:
        torch.mm(block[0], matrix, out=out[0])
    else:
        torch.addmm(bias, block[0], matrix, out=out[0])


def add_product(block: Tensor, matrix: Tensor, into: Tensor) -> None:
    """into += block M: the sum is made where the product ends, in its epilogue, and costs no pass of its own."""
    if len(block) == 1:
        into[0].addmm_(block[0], matrix)
    else:
        into.baddbmm_(block, matrix.expand(len(block), -1, -1))


def cut(block: Tensor, num_parts: int) -> tuple[Tensor, ...]:
    """Views of about equal size, some of them empty where there is less to cut: along b, or along R where b is 1.

    Parts of a contiguous block are contiguous.
    """
    return block.tensor_split(num_parts, 0 if len(block) > 1 else 1)
