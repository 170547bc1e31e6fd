"""Attention by heads: which ones a rank holds, its queries, keys and values in one product, and shared K/V heads.

With grouped queries (arXiv:2305.13245) several query heads share one K/V head: query head h attends to K/V head
h // (H / num_kv_heads). Where there are fewer K/V heads than ranks, p / num_kv_heads ranks hold the same one.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.dims import require_divisible
from tpcourse.linear.column import column_linear
from tpcourse.wire.gradients import gradients_by_dtype
from tpcourse.wire.inputs import place


class Heads:
    """Which query heads and which K/V heads this rank holds.

    `heads` and `kv_heads` are ranges of the model's; `copies` counts the ranks that hold the same K/V heads.
    `at` = (rank, p) asks for another rank than this one.
    The rows of this rank's fused weight are its query heads', its keys' and its values': `num_rows(K)` in all.
    Raises: ValueError unless num_kv_heads divides num_heads, p divides num_heads, and one of num_kv_heads and p
    divides the other.
    """

    def __init__(
        self, num_heads: int, num_kv_heads: int, tp: dist.ProcessGroup | None, *, at: tuple[int, int] | None = None
    ) -> None:
        rank, p = at or ((0, 1) if tp is None else place(tp))
        _require_heads(num_heads, num_kv_heads, p)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.copies = max(1, p // num_kv_heads)
        mine, mine_kv = num_heads // p, max(1, num_kv_heads // p)
        first_kv = rank * num_kv_heads // p
        self.heads = range(rank * mine, (rank + 1) * mine)
        self.kv_heads = range(first_kv, first_kv + mine_kv)

    def num_rows(self, head_width: int) -> int:
        """Rows of this rank's fused weight: (H/p + 2 kv_r) K."""
        return sum(self.row_sizes(head_width))

    def row_sizes(self, head_width: int) -> list[int]:
        """How many of them are for queries, keys and values, in this order."""
        return [head_width * len(part) for part in (self.heads, self.kv_heads, self.kv_heads)]

    def __repr__(self) -> str:
        shared = f", shared by {self.copies} ranks" if self.copies > 1 else ""
        kv = f"K/V {_span(self.kv_heads)} of {self.num_kv_heads}{shared}"
        return f"Heads: {_span(self.heads)} of {self.num_heads}, {kv}"


def qkv_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    tp: dist.ProcessGroup | None,
    heads: Heads,
    head_width: int,
    sequence_dim: int | None = None,
    num_tokens: int | None = None,
    regather: bool = False,
    overlap: str = "serial",
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of this rank's heads, by one product with the fused weight.

    Shapes: x [B, T, D], weight [(H/p + 2 kv_r) K, D] (rows of q, then k, then v), bias as its rows
    -> q [B, T, H/p, K], k and v [B, T, kv_r, K], views of one array. The rest is as in `column_linear`.
    Traffic: that of one `column_linear`, whatever the number of heads.
    Raises: ValueError if the weight has other rows than these heads need, and as `column_linear`.
    Trap: where ranks hold the same K/V heads, each has their gradients from its own queries only:
    `sum_shared_heads` adds them up.
    """
    sizes = heads.row_sizes(head_width)
    _require_rows(weight, heads, head_width)
    y = column_linear(
        x, weight, bias, tp=tp, sequence_dim=sequence_dim, num_tokens=num_tokens, regather=regather,
        overlap=overlap,
    )  # fmt: skip
    q, k, v = (part.unflatten(-1, (-1, head_width)) for part in y.split(sizes, -1))
    return q, k, v


@torch.no_grad()
def sum_shared_heads(
    gradients: Iterable[Tensor | None], *, tp: dist.ProcessGroup | None, heads: Heads, head_width: int
) -> None:
    """Add up the gradients of K/V heads that several ranks hold, in place: once a step, after the last backward.

    A shared K/V head serves the queries of `copies` ranks, so dW = sum of their dW. Each rank puts its part into an
    array with a place for every K/V head, zeros elsewhere; one sum of that array serves all heads and layers.
    Shapes: the fused weights' gradients [(H/p + 2) K, D] and biases' [(H/p + 2) K]; None is skipped.
    Traffic: one all-reduce for each dtype of 2 num_kv_heads K D elements a weight; nothing if copies == 1.
    Raises: ValueError for a gradient with other rows than these heads have, or a weight in its place.
    Trap: called twice, gradients are too large; the rows of the queries are this rank's own and stay as they are.
    """
    if tp is None or heads.copies == 1:
        return
    by_dtype = gradients_by_dtype(gradients)
    for gradient in (gradient for alike in by_dtype.values() for gradient in alike):
        _require_rows(gradient, heads, head_width)
    for alike in by_dtype.values():
        # rows of k and v of the one K/V head
        _sum_in_place([gradient[-2 * head_width :] for gradient in alike], tp, heads)


def _sum_in_place(parts: list[Tensor], tp: dist.ProcessGroup, heads: Heads) -> None:
    mine = torch.cat([part.reshape(-1) for part in parts])  # [n]
    table = mine.new_zeros(heads.num_kv_heads, mine.numel())
    table[heads.kv_heads[0]] = mine
    dist.all_reduce(table, group=tp)
    pieces = table[heads.kv_heads[0]].split([part.numel() for part in parts])
    torch._foreach_copy_(parts, [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)])


def _require_heads(num_heads: int, num_kv_heads: int, p: int) -> None:
    if min(num_heads, num_kv_heads) < 1:
        raise ValueError(f"num_heads = {num_heads} and num_kv_heads = {num_kv_heads}: use at least 1 of each")
    if num_heads % num_kv_heads:
        fits = ", ".join(str(n) for n in range(1, num_heads + 1) if num_heads % n == 0)
        raise ValueError(
            f"num_kv_heads = {num_kv_heads} does not divide num_heads = {num_heads}, so some K/V heads would serve "
            f"more queries than others: use num_kv_heads of {fits}"
        )
    require_divisible(num_heads, p, "num_heads")
    if num_kv_heads % p and p % num_kv_heads:
        fits = ", ".join(str(n) for n in range(1, num_heads + 1) if num_heads % n == 0 and not (n % p and p % n))
        raise ValueError(
            f"num_kv_heads = {num_kv_heads} on {p} ranks: neither divides the other, so a rank would need parts of "
            f"K/V heads; use num_kv_heads of {fits}, or a number of ranks that fits {num_kv_heads}"
        )


def _require_rows(rows: Tensor, heads: Heads, head_width: int) -> None:
    expected = heads.num_rows(head_width)
    if rows.dim() == 0 or rows.shape[0] != expected:
        raise ValueError(
            f"the fused weight (or its gradient) has shape {list(rows.shape)}, but {len(heads.heads)} heads and "
            f"2 x {len(heads.kv_heads)} K/V heads of width {head_width} need {expected} rows"
        )


def _span(part: range) -> str:
    return f"{part[0]}" if len(part) == 1 else f"{part[0]} to {part[-1]}"
