"""The doors: from a replicated tensor to this rank's tokens, and back."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tpcourse.conjugates import gather_scatter_sum, gather_split, split_gather
from tpcourse.dims import split_sizes
from tpcourse.wire.inputs import place, require_dim


def enter(x: Tensor, *, tp: dist.ProcessGroup | None, dim: int = 1) -> Tensor:
    """This rank's tokens of a replicated x: split forward, gather backward.

    y_r = piece r of x, so dx = (dy_0, ..., dy_{p-1}).
    Shapes: [B, T, D] -> [B, T_r, D], with T_r from `token_sizes`; the tokens lie along dim.
    Traffic: none forward; one all-gather, (p-1)/p n bytes, backward; uneven pieces count as p times the longest.
    Raises: ValueError if there are fewer tokens than ranks, or no such dim.
    Trap: a partial sum is not replicated; `row_linear(..., sequence_dim=1)` brings it here at half the bytes of
    an all-reduce and `enter`.
    """
    require_dim(x, dim)
    sizes = token_sizes(x.shape[dim], tp=tp)
    return x if tp is None else split_gather(x, group=tp, dim=dim, sizes=sizes)


def leave(
    x: Tensor,
    *,
    tp: dist.ProcessGroup | None,
    dim: int = 1,
    num_tokens: int | None = None,
    into: str = "replicated",
) -> Tensor:
    """All ranks' tokens on every rank: gather forward; `into` names the work that follows, and decides backward.

    y = (x_0, ..., x_{p-1}). "replicated": all ranks do the same with y, and dx_r = piece r of dy. "split": each
    does its part, such as the product with its columns, and dx_r = sum_s (piece r of dy_s).
    Shapes: [B, T_r, D] -> [B, T, D]; without `num_tokens` = T all pieces are as long as this one.
    Traffic: one all-gather forward; for "split" one reduce-scatter backward, else none; (p-1)/p n bytes each.
    Raises: ValueError if this piece is not what `token_sizes` says, or for another `into`.
    Trap: the wrong `into` leaves y right, and dx short by the other ranks' share, or p times too large. Uneven
    pieces need `num_tokens`: without it the calls have unequal shapes, and a wrong one may fit on some ranks.
    """
    pairs = {"replicated": gather_split, "split": gather_scatter_sum}
    if into not in pairs:
        raise ValueError(f"into = {into!r} is unknown: use {' or '.join(map(repr, pairs))}")
    sizes = _sizes_around(x, tp, dim, num_tokens)
    return x if tp is None else pairs[into](x, group=tp, dim=dim, sizes=sizes)


def token_sizes(num_tokens: int, *, tp: dist.ProcessGroup | None) -> list[int]:
    """How many tokens each rank has: as even as possible, the longer pieces first.

    Raises: ValueError if there are fewer tokens than ranks.
    """
    _, p = (0, 1) if tp is None else place(tp)
    if num_tokens < p:
        raise ValueError(
            f"{num_tokens} tokens on {p} ranks leave {p - num_tokens} without any: "
            f"use at least {p} tokens, or at most {max(1, num_tokens)} ranks"
        )
    return split_sizes(num_tokens, p)


def _sizes_around(x: Tensor, tp: dist.ProcessGroup | None, dim: int, num_tokens: int | None) -> list[int]:
    """All ranks' sizes, of which x has this rank's."""
    require_dim(x, dim)
    rank, p = (0, 1) if tp is None else place(tp)
    sizes = token_sizes(x.shape[dim] * p if num_tokens is None else num_tokens, tp=tp)
    if x.shape[dim] != sizes[rank]:
        raise ValueError(
            f"dim {dim} is {x.shape[dim]} long, but rank {rank} of {p} has {sizes[rank]} of {num_tokens} tokens: "
            f"num_tokens is the length before `enter`, and dim the one that was cut"
        )
    return sizes
