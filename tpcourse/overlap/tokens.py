"""Tokens that are cut over the ranks: the two collectives that move them, begun here and waited for later."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.dims import split_sizes
from tpcourse.wire.inputs import place
from tpcourse.wire.torch_calls import all_gather_single, pad_to, reduce_scatter_single


class Moving(NamedTuple):
    """A collective under way."""

    work: dist.Work | None
    result: Tensor
    arrange: Callable[[Tensor], Tensor]

    def wait(self) -> Tensor:
        """What it brought."""
        if self.work is not None:
            self.work.wait()
        return self.arrange(self.result)


class Tokens(NamedTuple):
    """How many tokens of dim `dim` each rank of the group has; this is rank `rank` of it.

    Uneven pieces travel padded to the longest, and count as p times that.
    """

    tp: dist.ProcessGroup
    rank: int
    dim: int
    sizes: list[int]

    def gather(self, piece: Tensor, *, async_op: bool = False) -> Moving:
        """All ranks' tokens on every rank: [B, T_r, D] -> [B, T, D]. Traffic: one all-gather, (p-1)/p n bytes."""
        padded = pad_to(piece, self.sizes[0], self.dim)
        stack = padded.new_empty(len(self.sizes), *padded.shape)  # [p, B, T_0, D]
        work = all_gather_single(stack.flatten(0, 1), padded, group=self.tp, async_op=async_op)
        return Moving(work, stack, self._join)

    def scatter_sum(self, whole: Tensor, *, async_op: bool = False) -> Moving:
        """The sum of this rank's tokens: [B, T, D] -> [B, T_r, D]. Traffic: one reduce-scatter, (p-1)/p n bytes."""
        stack = self._cut(whole)  # [p, B, T_0, D]
        padded = torch.empty_like(stack[0])
        work = reduce_scatter_single(padded, stack.flatten(0, 1), group=self.tp, async_op=async_op)
        return Moving(work, padded, self._own)

    @property
    def _is_even(self) -> bool:
        return self.sizes[0] == self.sizes[-1]  # the longer pieces come first

    def block(self, x: Tensor) -> Tensor:
        """[.., t, .., D] as [b, R, D], contiguous: b dims before the tokens, R rows of t tokens and the dims behind."""
        return x.contiguous().view(math.prod(x.shape[: self.dim]), math.prod(x.shape[self.dim : -1]), x.shape[-1])

    def num_rows(self, x: Tensor) -> list[int]:
        """R of each rank's block."""
        return [size * math.prod(x.shape[self.dim + 1 : -1]) for size in self.sizes]

    def empty_block(self, piece: Tensor, width: int) -> Tensor:
        """Room for all ranks' tokens, [b, R, N], where piece is [.., T_r, .., D]."""
        return piece.new_empty(math.prod(piece.shape[: self.dim]), sum(self.num_rows(piece)), width)

    def unblock(self, block: Tensor, x: Tensor, num_tokens: int) -> Tensor:
        """[b, R, N] as [.., t, .., N], with the other dims of x."""
        return block.view(*x.shape[: self.dim], num_tokens, *x.shape[self.dim + 1 : -1], block.shape[-1])

    def unblock_all(self, block: Tensor, x: Tensor) -> Tensor:
        """The same for all ranks' tokens."""
        return self.unblock(block, x, sum(self.sizes))

    def _join(self, stack: Tensor) -> Tensor:
        if self._is_even:
            return stack.movedim(0, self.dim).flatten(self.dim, self.dim + 1)  # a view if nothing stands before T
        pieces = [padded.narrow(self.dim, 0, size) for padded, size in zip(stack, self.sizes, strict=True)]
        return torch.cat(pieces, self.dim)

    def _cut(self, whole: Tensor) -> Tensor:
        if self._is_even:
            stack = whole.unflatten(self.dim, (len(self.sizes), self.sizes[0]))
            return stack.movedim(self.dim, 0).contiguous()  # a view if nothing stands before T
        return torch.stack([pad_to(piece, self.sizes[0], self.dim) for piece in whole.split(self.sizes, self.dim)])

    def _own(self, padded: Tensor) -> Tensor:
        return padded.narrow(self.dim, 0, self.sizes[self.rank]).contiguous()


def tokens_of_piece(x: Tensor, tp: dist.ProcessGroup, dim: int, num_tokens: int | None) -> Tokens:
    """The tokens of which x has this rank's: `num_tokens` in all, or p times as many as x has.

    Raises: ValueError if x is no such piece, or dim is not one of tokens.
    """
    dim, (rank, p) = _token_dim(x, dim), place(tp)
    length = x.shape[dim]
    sizes = [length] * p if num_tokens is None else split_sizes(num_tokens, p)
    if sizes[rank] != length:
        raise ValueError(
            f"this rank's x has {length} tokens, but rank {rank} of {p} has {sizes[rank]} of num_tokens = {num_tokens} "
            f"(pieces of {sizes}): num_tokens counts the tokens of all ranks"
        )
    return Tokens(tp, rank, dim, sizes)


def tokens_of_whole(x: Tensor, tp: dist.ProcessGroup, dim: int) -> Tokens:
    """The tokens of an x that has all of them, cut by `split_sizes`.

    Raises: ValueError if dim is not one of tokens.
    """
    dim, (rank, p) = _token_dim(x, dim), place(tp)
    return Tokens(tp, rank, dim, split_sizes(x.shape[dim], p))


def _token_dim(x: Tensor, dim: int) -> int:
    """The dim counted from the front."""
    if not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
        raise ValueError(
            f"sequence_dim = {dim} is not a dim of tokens of x, {list(x.shape)}: use 1 for [B, T, D], 0 for [T, D]"
        )
    return dim % x.dim()
