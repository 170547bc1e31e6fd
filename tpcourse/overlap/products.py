"""The products of a linear layer, each one matrix product whatever dims stand before the last, and products of blocks.

A block is [b, R, in]: R rows of each of b sequences, maybe a view of a larger array. Its product is written where it
belongs.
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
    """out = block M + b. Shapes: [b, R, in], [in, out], [b, R, out], [out]; block and out may be views with gaps."""
    if not _is_matrix(block, out):
        torch.bmm(block, matrix.expand(len(block), -1, -1), out=out)
        if bias is not None:
            out += bias
    elif bias is None:
        torch.mm(rows(block), matrix, out=rows(out))
    else:
        torch.addmm(bias, rows(block), matrix, out=rows(out))


def add_product(block: Tensor, matrix: Tensor, into: Tensor) -> None:
    """into += block M: the sum is made where the product ends, in its epilogue, and costs no pass of its own."""
    if _is_matrix(block, into):
        rows(into).addmm_(rows(block), matrix)
    else:
        into.baddbmm_(block, matrix.expand(len(block), -1, -1))


def added_weight_gradient(dweight: Tensor | None, dy: Tensor, block: Tensor) -> Tensor:
    """dW + dy^T x for some rows of x, in the product's epilogue; dW = None is 0.

    Shapes: [out, in], [b, R, out], [b, R, in] -> [out, in]. In bfloat16 dW is rounded once for each product.
    """
    pairs = [(rows(dy), rows(block))] if _is_matrix(dy, block) else zip(dy, block, strict=True)
    for dy_rows, x_rows in pairs:  # [R, out], [R, in]
        dweight = dy_rows.T @ x_rows if dweight is None else dweight.addmm_(dy_rows.T, x_rows)
    assert dweight is not None, "a block without sequences is a matrix"
    return dweight


def _is_matrix(*blocks: Tensor) -> bool:
    """Whether the rows of all sequences lie one behind the other, so that one product serves them all."""
    return all(block.is_contiguous() for block in blocks)
