"""One device that has everything, and ranks played one after another. Imports torch: load it late.

A wrong answer is recognised by what it returns: played here with the same mistake, the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tpcourse.check.compare import Named
from tpcourse.check.lesson05.given import Given, Inputs

Share = dict[str, Any]
Groups = Iterable[Sequence[int]]


def on_one_device(inputs: Inputs, fn: Callable[..., Tensor], dims: dict[str, int]) -> list[Any]:
    """Each rank's share of `fn`'s result and gradients; `dims` has the dim of what is cut ("y" is the result)."""
    p, first = len(inputs), inputs[0]
    given = {
        name: _leaf(Given(_joined(inputs, name, dims.get(name)), value.leaf)) if isinstance(value, Given) else value
        for name, value in first.items()
        if name != "dy"
    }
    y = fn(**given)
    y.backward(torch.from_numpy(_joined(inputs, "dy", dims.get("y"))))
    found = [("y", "dy", y), *((f"d{name}", name, leaf.grad) for name, leaf in _leaves(given))]
    pieces = {
        label: _pieces(tensor, [share[like].array for share in inputs], dims.get("y" if like == "dy" else like))
        for label, like, tensor in found
    }
    return [Named({label: parts[rank] for label, parts in pieces.items()}) for rank in range(p)]


def on_ranks(
    inputs: Inputs,
    forward: Callable[[list[Share]], list[Tensor]],
    summed: Iterable[str] = ("x",),
    groups: Mapping[str, Groups] | None = None,
) -> list[Any]:
    """Each rank's result and gradients; those of `summed` are added over all ranks, or over the groups of that name."""
    shares = [{name: _leaf(v) if isinstance(v, Given) else v for name, v in share.items()} for share in inputs]
    ys = forward(shares)
    torch.stack([(y * share["dy"]).sum() for y, share in zip(ys, shares, strict=True)]).sum().backward()
    gradients = [{name: leaf.grad for name, leaf in _leaves(share)} for share in shares]
    for name in summed:
        for group in (groups or {}).get(name, [range(len(inputs))]):
            total = torch.stack([gradients[rank][name] for rank in group]).sum(0)
            for rank in group:
                gradients[rank][name] = total
    return [
        Named({"y": _array(y), **{f"d{name}": _array(gradient) for name, gradient in of_rank.items()}})
        for y, of_rank in zip(ys, gradients, strict=True)
    ]


def sum_copy(parts: list[Tensor]) -> list[Tensor]:
    """Sum forward, copy backward."""
    total = torch.stack(parts).sum(0).detach()
    return [part + (total - part.detach()) for part in parts]


def sum_sum(parts: list[Tensor]) -> list[Tensor]:
    """Sum forward, sum backward."""
    return [torch.stack(parts).sum(0)] * len(parts)


def copy_sum(parts: list[Tensor]) -> list[Tensor]:
    """Copy forward, sum backward, of parts that differ."""
    return [part + (sum_sum(parts)[0] - part) - (sum_sum(parts)[0] - part).detach() for part in parts]


def _joined(inputs: Inputs, name: str, dim: int | None) -> np.ndarray:
    arrays = [share[name].array for share in inputs]
    return arrays[0] if dim is None else np.concatenate(arrays, dim)


def _pieces(tensor: Tensor, like: list[np.ndarray], dim: int | None) -> list[np.ndarray]:
    array = _array(tensor)
    if dim is None:
        return [array] * len(like)
    return np.split(array, np.cumsum([piece.shape[dim] for piece in like])[:-1], dim)


def _leaf(given: Given) -> Tensor:
    return torch.from_numpy(given.array.copy()).requires_grad_(given.leaf)


def _leaves(share: Share) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in share.items() if isinstance(value, Tensor) and value.requires_grad]


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().numpy()
