"""What the tests of columns and rows share: an MLP on one device, the same split over ranks, and how far apart."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tpcourse import wire
from tpcourse.dims import split_range
from tpcourse.linear import column_linear, row_linear

B, D, HIDDEN, OUT = 2, 5, 13, 7
"""No two sizes equal, and none of 2, 3 and 4 ranks divides the hidden width."""
TIGHT = 1e-12
NAMES = ("y", "dx", "dw1", "db1", "dw2", "db2")


def draw(seed: int, *shape: int) -> Tensor:
    """The same normal float64 on every rank."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(has_bias: bool = True, hidden: int = HIDDEN) -> list[Tensor | None]:
    """w1 [F, D], b1 [F], w2 [OUT, F], b2 [OUT]."""
    found = [draw(1, hidden, D), draw(2, hidden), draw(3, OUT, hidden), draw(4, OUT)]
    return found if has_bias else [found[0], None, found[2], None]


def gradients(y: Tensor, tensors: Iterable[Tensor | None], factor: Tensor | None = None) -> list[Tensor | None]:
    """Of sum(y^2 factor) / 2: a loss whose gradient depends on y, so that a wrong y shows in all of them."""
    factor = (draw(9, *y.shape) if factor is None else factor).to(y)
    there = [tensor for tensor in tensors if tensor is not None]
    found = iter(torch.autograd.grad((y * y * factor).sum() / 2, there))
    return [None if tensor is None else next(found) for tensor in tensors]


def on_one_device(x: Tensor, has_bias: bool = True, hidden: int = HIDDEN) -> dict[str, Tensor | None]:
    """y and all gradients of the MLP."""
    tensors = [None if w is None else w.requires_grad_() for w in (x.clone(), *weights(has_bias, hidden))]
    y = F.linear(F.gelu(F.linear(*tensors[:3])), *tensors[3:])
    return dict(zip(NAMES, [y.detach(), *gradients(y, tensors)], strict=True))


def shard(group: dist.ProcessGroup, tensor: Tensor | None, dim: int | None) -> Tensor | None:
    """This rank's piece along dim; all of it for None."""
    if tensor is None or dim is None:
        return tensor
    start, end = split_range(tensor.shape[dim], dist.get_world_size(group), dist.get_rank(group))
    return tensor.narrow(dim, start, end - start)


def pieces(group, x, has_bias=True, hidden=HIDDEN, sequence_dim=None, to=torch.float64) -> list[Tensor | None]:
    """This rank's x, w1, b1, w2 and b2, each requiring a gradient, as dtype or on device `to`; x keeps its strides."""
    cuts = (sequence_dim, 0, 0, 1, None)
    found = [shard(group, whole, dim) for whole, dim in zip((x, *weights(has_bias, hidden)), cuts, strict=True)]
    return [None if piece is None else piece.detach().clone().to(to).requires_grad_() for piece in found]


def on_ranks(
    group, x, has_bias=True, hidden=HIDDEN, sequence_dim=None,
    *, column=column_linear, row=row_linear, to=torch.float64, **options,
) -> dict[str, Tensor | None]:  # fmt: skip
    """The same of the MLP split over the ranks; the last bias's gradient is summed where it is partial."""
    tensors = pieces(group, x, has_bias, hidden, sequence_dim, to)
    more = {} if sequence_dim is None else {"sequence_dim": sequence_dim}
    if more:
        options = {"num_tokens": x.shape[sequence_dim], **options}
    hidden = F.gelu(column(*tensors[:3], tp=group, **more, **options))
    y = row(hidden, *tensors[3:], tp=group, **more)
    factor = shard(group, draw(9, *x.shape[:-1], OUT), sequence_dim)
    found = dict(zip(NAMES, [y.detach(), *gradients(y, tensors, factor)], strict=True))
    if more and has_bias:
        found["db2"] = wire.all_reduce(found["db2"], group=group)  # a sum over this rank's tokens
    return {name: None if value is None else value.cpu() for name, value in found.items()}


def errors(group, x, has_bias=True, hidden=HIDDEN, sequence_dim=None, **options) -> dict[str, float]:
    """The largest error of each tensor on this rank, relative to its largest element on one device."""
    expected = on_one_device(x, has_bias, hidden)
    found = on_ranks(group, x, has_bias, hidden, sequence_dim, **options)
    cuts = dict(zip(NAMES, (sequence_dim, sequence_dim, 0, 0, 1, None), strict=True))
    apart = {}
    for name, whole in expected.items():
        if whole is not None:
            mine = shard(group, whole, cuts[name])
            assert found[name].shape == mine.shape, f"{name}: {found[name].shape}, not {mine.shape}"
            largest = float(whole.abs().max()) if whole.numel() else 0.0
            apart[name] = float((found[name] - mine).abs().max()) / (largest or 1) if mine.numel() else 0.0
    return apart


def layouts() -> Iterable[tuple[str, dict]]:
    """Both pairs, all options of them: the name of a case and its arguments."""
    for has_bias in (True, False):
        yield f"replicated, bias {has_bias}", {"x": draw(0, B, 9, D), "has_bias": has_bias}
        for T, regather in product((9, 12), (False, True)):
            name = f"{T} tokens, bias {has_bias}, regather {regather}"
            options = {"has_bias": has_bias, "regather": regather}
            yield f"[B, T, D], {name}", {"x": draw(0, B, T, D), "sequence_dim": 1, **options}
            yield f"[T, B, D], {name}", {"x": draw(0, T, B, D), "sequence_dim": 0, **options}
        yield f"[1, 9, D], bias {has_bias}", {"x": draw(0, 1, 9, D), "sequence_dim": -2, "has_bias": has_bias}


def shapes() -> Iterable[tuple[str, dict]]:
    """Forms of x and sizes of the rest that a user may bring."""
    yield "[D]", {"x": draw(0, D)}
    yield "[T, D]", {"x": draw(0, 9, D)}
    yield "[1, B, T, D]", {"x": draw(0, 1, B, 9, D)}
    yield "no tokens", {"x": draw(0, B, 0, D)}
    yield "transposed", {"x": draw(0, D, 9, B).permute(2, 1, 0)}
    yield "fewer hidden than ranks", {"x": draw(0, 9, D), "hidden": 2}
    for regather in (False, True):
        options = {"sequence_dim": 1, "regather": regather}
        yield f"transposed pieces, regather {regather}", {"x": draw(0, D, 9, B).permute(2, 1, 0), **options}
        yield f"fewer tokens than ranks, regather {regather}", {"x": draw(0, B, 1, D), **options}
        yield f"[B, T, 1, D], regather {regather}", {"x": draw(0, B, 9, 1, D), **options}
    yield "all pieces alike, and not told", {"x": draw(0, B, 12, D), "sequence_dim": 1, "num_tokens": None}
