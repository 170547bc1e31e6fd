"""Runs in a rank: a block whose autograd keeps views, masks and twice-saved tensors; and ways to count
them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tpcourse.check.lesson03.in_rank import seeded
from tpcourse.check.lesson03.rank_model_states import plain
from tpcourse.layer import TransformerLayer
from tpcourse.memory import peak, saved


def probe(answer: Any, device: torch.device, **sizes: Any) -> dict[str, Any]:
    """The answer's count beside the right one, and what it left behind."""
    block, x = build(device, **sizes)
    right = saved(block, x).bytes
    wrong = counts(block, x)
    with peak() as seen, _returned() as circles:
        result = answer(block, x)
        gc.collect()  # a circle of closures is no mistake
    found = {"result": plain(result), "right": right, "wrong": wrong}
    return {**found, "held": seen.left, "budget": 64, "circle": bool(circles)}


@contextmanager
def _returned() -> Iterator[list[bool]]:
    """Note every output that a pack hook returned as it was: it holds the graph that holds it."""
    hooks, circles = torch.autograd.graph.saved_tensors_hooks, []
    before = hooks.__init__

    def watched(self: Any, pack: Any, unpack: Any) -> None:
        def noted(tensor: Tensor) -> Any:
            packed = pack(tensor)
            if packed is tensor and tensor.grad_fn is not None:
                circles.append(True)
            return packed

        before(self, noted, unpack)

    hooks.__init__ = watched
    try:
        yield circles
    finally:
        hooks.__init__ = before


def build(device: torch.device, seed: int, tokens: int, width: int, gated: bool) -> tuple[nn.Module, Tensor]:
    """A gated block in float32, or a whole transformer layer in bfloat16, and its input."""
    seeded(seed)
    block: nn.Module = Gated(width) if gated else TransformerLayer(4 * width, 4).bfloat16()
    dtype = next(block.parameters()).dtype
    x = torch.randn(2, tokens, width if gated else 4 * width, dtype=dtype, device=device)
    return block.to(device), x.requires_grad_()


class Gated(nn.Module):
    """x + drop(down(sigmoid(u) * v)), where u and v are two thirds of one product; the last third is for nothing: with
    halves, views that are counted twice by their own size would add up to the storage.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 9 * width),
            nn.Linear(3 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        u, v, _ = self.up(self.norm(x)).chunk(3, -1)
        return x + torch.native_dropout(self.down(torch.sigmoid(u) * v), 0.1, True)[0]


def counts(block: nn.Module, x: Tensor) -> dict[str, list[int]]:
    """What wrong ways to count come to."""
    tensors: list[Tensor] = []
    outputs: list[Tensor] = []
    handles = [part.register_forward_hook(lambda _, __, y: outputs.append(y)) for part in _leaves(block)]

    def keep(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = block(x)
    for handle in handles:
        handle.remove()
    weights = {p.untyped_storage().data_ptr() for p in block.parameters()}
    own = [t for t in tensors if t.untyped_storage().data_ptr() not in weights]
    return {
        "every size": [_sizes(own)],
        "every time": [_storages(own)],
        "views": [_sizes(_first(own)), _sizes(_last(own)), _sizes(_by_start(own))],
        "parameters": [_storages(_first(tensors)), _storages(tensors)],
        "input": [_storages(_first(own)) - x.untyped_storage().nbytes()],
        "outputs": [
            _sizes(outputs),
            _sizes([*outputs, x]),
            _sizes([*outputs, y]),
            _storages(_first(outputs)),
        ],
        "four bytes": [sum(4 * t.untyped_storage().nbytes() // t.element_size() for t in _first(own))],
    }


def _leaves(block: nn.Module) -> list[nn.Module]:
    return [part for part in block.modules() if not list(part.children())]


def _storages(tensors: list[Tensor]) -> int:
    return sum(t.untyped_storage().nbytes() for t in tensors)


def _sizes(tensors: list[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _first(tensors: list[Tensor]) -> list[Tensor]:
    """The first tensor of each storage."""
    return list({t.untyped_storage().data_ptr(): t for t in reversed(tensors)}.values())


def _last(tensors: list[Tensor]) -> list[Tensor]:
    return list({t.untyped_storage().data_ptr(): t for t in tensors}.values())


def _by_start(tensors: list[Tensor]) -> list[Tensor]:
    """One tensor for each first element, which two views of a storage need not share."""
    return list({t.data_ptr(): t for t in tensors}.values())
