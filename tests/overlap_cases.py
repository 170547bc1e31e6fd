"""What the tests of overlap share: the two products on one device and on ranks, with all gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from linear_cases import draw, gradients, shard
from torch import Tensor

from tpcourse.overlap import gather_product, product_scatter

B, D, N = 2, 5, 13
NAMES = ("y", "dx", "dweight", "dbias")
PLAIN_FORMS = ("serial", "ring", "popular")
"""Those that run anywhere."""
CUTS = {"gather": ("sequence", 0, 0), "scatter": (-1, 1, None)}
"""Along which dim x, the weight and the bias are cut; "sequence" is that of the tokens."""
KERNELS = {"gather": gather_product, "scatter": product_scatter}


def tensors(kind: str, case: dict[str, Any]) -> list[Tensor | None]:
    """x, weight and bias on one device: [.., D] to N columns to gather, [.., N] to D to scatter."""
    whole = case["whole"]
    into, out = (D, N) if kind == "gather" else (N, D)
    bias = draw(2, out) if case.get("has_bias", True) else None
    found = [draw(0, *whole, into), draw(1, out, into), bias]
    return [None if t is None else (t * 4).round() if case.get("is_round") else t for t in found]


def on_one_device(kind: str, case: dict[str, Any]) -> list[Tensor | None]:
    """y and all gradients."""
    found = [None if t is None else t.requires_grad_() for t in tensors(kind, case)]
    y = F.linear(*found)
    return [y.detach(), *gradients(y, found, factor(y, case))]


def factor(y: Tensor, case: dict[str, Any]) -> Tensor:
    """Of the loss: whole numbers where the case asks for them."""
    return (draw(9, *y.shape) * 2).round() if case.get("is_round") else draw(9, *y.shape)


def place(t: Tensor, to: Any) -> Tensor:
    """A leaf as dtype or on device `to`, that requires a gradient."""
    return t.detach().clone().to(to).requires_grad_()


def on_ranks(group, kind: str, case: dict[str, Any], form: str, *, kernel=None, to: Any = torch.float64, **options):
    """This rank's y and gradients, and what they are on one device."""
    dim, whole = case.get("sequence_dim", 1), tensors(kind, case)
    dims = [dim if cut == "sequence" else cut for cut in CUTS[kind]]
    mine = [None if t is None else place(shard(group, t, cut), to) for t, cut in zip(whole, dims, strict=True)]
    options = {"sequence_dim": dim, **options}
    if kind == "gather":
        options["num_tokens"] = case["whole"][dim]
    y = (kernel or KERNELS[kind])(*mine, tp=group, form=form, **options)
    y_dims = (-1, dim, 0, 0) if kind == "gather" else (dim, -1, 1, None)
    expected = on_one_device(kind, case)
    found = [y, *gradients(y, mine, shard(group, factor(expected[0], case), y_dims[0]))]
    found = [None if t is None else t.detach().cpu() for t in found]
    if kind == "scatter" and found[3] is not None:
        is_near = dist.get_backend(group) == "gloo"
        found[3] = summed(group, found[3] if is_near else found[3].to(y.device)).cpu()  # over this rank's tokens
    cut = [None if t is None else shard(group, t, at) for t, at in zip(expected, y_dims, strict=True)]
    return dict(zip(NAMES, found, strict=True)), dict(zip(NAMES, cut, strict=True))


def summed(group, t: Tensor) -> Tensor:
    """The sum over the ranks."""
    from tpcourse import wire

    return wire.all_reduce(t, group=group)


def errors(group, kind: str, case: dict[str, Any], form: str, **options) -> dict[str, float]:
    """The largest error of each tensor on this rank, relative to its largest element on one device."""
    found, expected = on_ranks(group, kind, case, form, **options)
    apart = {}
    for name, right in expected.items():
        if right is not None:
            assert found[name].shape == right.shape, f"{name}: {found[name].shape}, not {right.shape}"
            largest = float(right.abs().max()) if right.numel() else 0.0
            apart[name] = float((found[name] - right).abs().max()) / (largest or 1) if right.numel() else 0.0
    return apart


def cases() -> Iterable[tuple[str, dict[str, Any]]]:
    """Forms of x that a user may bring."""
    yield "[B, T, D]", {"whole": (B, 12)}
    yield "[B, T, D], uneven", {"whole": (B, 9)}
    yield "[B, T, D], without bias", {"whole": (B, 9), "has_bias": False}
    yield "[1, T, D], uneven", {"whole": (1, 9)}
    yield "[T, B, D], uneven", {"whole": (9, B), "sequence_dim": 0}
    yield "[T, D]", {"whole": (8,), "sequence_dim": 0}
    yield "[B, T, 3, D]", {"whole": (B, 9, 3)}
    yield "fewer tokens than ranks", {"whole": (B, 1)}
    yield "no sequences", {"whole": (0, 4)}
