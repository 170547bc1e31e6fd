"""What one device computes with all ranks' parts, and which share of each gradient is a rank's. Imports torch late."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.lesson06.recipe import Weights

Gradients = dict[str, np.ndarray]


def pieces_through_block(parts: list[Weights], xs: list[np.ndarray], dys: list[np.ndarray]) -> list[Gradients]:
    """y, dx and all gradients of each rank, from [B, T/p, D] pieces of x and dy.

    Every rank's piece of the tokens meets its own copy of the whole weights, so what a copy collects is that
    rank's share of the gradient; the whole gradient is the sum of them.
    """
    import torch

    blocks, leaves, ys = _forward(parts, xs)
    torch.autograd.backward(ys, [torch.from_numpy(dy.copy()) for dy in dys])
    return [
        {"y": y.detach().numpy(), "dx": _array(x), **_gradients(block, without=("norm3",))}
        for block, x, y in zip(blocks, leaves, ys, strict=True)
    ]


def own_gradients(parts: list[Weights], xs: list[np.ndarray], dy: np.ndarray) -> list[Gradients]:
    """Each rank's share of the gradients of block and last norm; of the last norm, which sees all tokens on all
    ranks, everything.
    """
    import torch

    blocks, _, ys = _forward(parts, xs)
    last = blocks[0].norm3
    last(torch.cat(ys, 1)).backward(torch.from_numpy(dy.copy()))
    return [{**_gradients(block), "dnorm3.scale": _array(last.scale)} for block in blocks]


def _forward(parts: list[Weights], xs: list[np.ndarray]) -> tuple[list[Any], list[Any], list[Any]]:
    """The blocks, the pieces of x as leaves, the pieces of y."""
    import torch

    from tpcourse.check.lesson06.nets import Block

    blocks = [Block(weights) for weights in parts]
    leaves = [torch.from_numpy(x.copy()).requires_grad_() for x in xs]
    sizes = [x.shape[1] for x in xs]

    def join(found: Any) -> Any:
        return torch.cat(list(found), 1)

    def added(found: Any) -> Any:
        return torch.stack(list(found)).sum(0).split(sizes, 1)

    h = join(block.norm1(x) for block, x in zip(blocks, leaves, strict=True))
    attended = added(block.attention(h) for block in blocks)
    ys = [x + a + block.attention_bias for block, x, a in zip(blocks, leaves, attended, strict=True)]
    h = join(block.norm2(y) for block, y in zip(blocks, ys, strict=True))
    thought = added(block.mlp(h) for block in blocks)
    ys = [y + m + block.mlp_bias for block, y, m in zip(blocks, ys, thought, strict=True)]
    return blocks, leaves, ys


def _gradients(block: Any, without: tuple[str, ...] = ()) -> Gradients:
    return {f"d{name}": _array(leaf) for name, leaf in block.named_parameters() if not name.startswith(without)}


def _array(leaf: Any) -> np.ndarray:
    return np.zeros(tuple(leaf.shape)) if leaf.grad is None else leaf.grad.numpy()
