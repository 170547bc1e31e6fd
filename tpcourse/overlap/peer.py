"""Copies from memory to memory on a stream of their own, by the GPU's copy engines: products lose no multiprocessor.

Written for GPUs of one host that reach each other's memory (`torch.distributed._symmetric_memory`). The ledger does
not see these copies. What orders them are signals (see `area`): a block is read behind the signal that it has come,
and overwritten behind the signal that it was read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext

from torch import Tensor

from tpcourse.overlap.area import aligned, area_of
from tpcourse.overlap.parts import Part, Place, cut, everything, rows_of
from tpcourse.overlap.products import add_product, write_product
from tpcourse.overlap.ring import usual_pieces
from tpcourse.overlap.tokens import Tokens


def arriving(
    x: Tensor, tokens: Tokens, *, pieces: int | None = None, is_apart: bool = False, with_whole: bool = False
) -> Iterator[Part]:
    """All ranks' tokens as they come, this rank's first: [.., T_r, D] -> parts of [b, R, D].

    Each rank writes its tokens into the others' memory, in `pieces` (1), from the moment of the call, while its own
    are multiplied from where they are; then the others', from where they came. Nothing travels twice: the next call
    but one writes there, so backward gathers again what it needs. With `is_apart` the others' part may be multiplied
    on a stream of its own, and begin as the blocks of the product before it end. `with_whole` puts this rank's tokens
    among the others', sequence by sequence, and hands out a last part that has them all.
    Traffic: p - 1 times a copy for each of the pieces, or with a whole for each sequence; (p-1)/p n bytes where ranks
    have equally many tokens.
    """
    call = _Arriving(x, tokens, pieces or 1, is_apart, with_whole)
    with call.slot.beside():  # behind what the current stream has now
        for to in call.others:
            call.push(to)
        if with_whole:
            call.put_own()
    return call.parts()


class _Arriving:
    """One call: where its blocks are."""

    def __init__(self, x: Tensor, tokens: Tokens, num_pieces: int, is_apart: bool, with_whole: bool) -> None:
        self.rank, self.num_pieces, self.mine = tokens.rank, num_pieces, tokens.block(x)
        self.is_apart, self.with_whole = is_apart, with_whole
        self.sizes, p = tokens.num_rows(x), len(tokens.sizes)
        self.others = [(self.rank + step) % p for step in range(1, p)]  # no two ranks begin with the same one
        b, _, width = self.mine.shape
        self.shape = (b, sum(self.sizes), width)
        room = math.prod(self.shape)
        area = area_of("gather", tokens, x, room * x.itemsize, self.others)
        self.slot = area.next_slot(x.dtype, room)

    def whole(self, rank: int) -> Tensor:
        """Where a rank has all tokens: [b, R, D]."""
        return self.slot.block(rank, 0, self.shape)

    def place(self, rank: int) -> Place:
        """Where a rank's tokens belong in the whole."""
        return rows_of(rank, self.sizes, self.shape[0])

    def rows(self, rank: int, owner: int) -> Tensor:
        """Where a rank has an owner's tokens, [b, R_r, D]: at their place in the whole, or without gaps."""
        if self.with_whole:
            return self.whole(rank)[self.place(owner)]
        b, _, width = self.shape
        start, shape = b * sum(self.sizes[:owner]) * width, (b, self.sizes[owner], width)
        return self.whole(rank).flatten()[start : start + math.prod(shape)].view(shape)

    def push(self, to: int) -> None:
        """Write this rank's tokens into another rank's memory, each piece with its signal."""
        self.slot.wait_free(to)
        there = self.rows(to, self.rank)
        for number, at in enumerate(cut(everything(self.mine), self.num_pieces)):
            self.slot.copy(self.mine[at], there[at], f"push to rank {to}")
            self.slot.put(to, number)

    def put_own(self) -> None:
        """This rank's tokens among the others' in its own memory: a copy that no link sees."""
        self.rows(self.rank, self.rank).copy_(self.mine)

    def parts(self) -> Iterator[Part]:
        """This rank's tokens, then the others', each piece behind its signal; they may be overwritten afterwards."""
        stream, is_summed = self.slot.second if self.is_apart else nullcontext, not self.with_whole
        self.slot.fork()
        yield Part(self.place(self.rank), self.mine, is_summed=is_summed)
        for from_ in reversed(self.others):
            come = self.rows(self.rank, from_)
            places = cut(self.place(from_), self.num_pieces)
            for number, (at, here) in enumerate(zip(places, cut(everything(come), self.num_pieces), strict=True)):
                with stream():
                    self.slot.wait(from_, number)
                yield Part(at, come[here], stream, is_summed=is_summed)
        self.slot.unite()
        self.slot.join()
        if self.with_whole:
            whole = self.whole(self.rank)
            yield Part(everything(whole), whole, is_new=False)
            self.slot.follow()  # this rank writes there as well, and waits for no signal of its own
            self.slot.join()  # a captured graph wants every stream back
        for from_ in self.others:
            self.slot.free(from_)


def scatter(
    x: Tensor,
    matrix: Tensor,
    tokens: Tokens,
    *,
    pieces: int | None = None,
    between: Callable[[], object] | None = None,
) -> Tensor:
    """This rank's tokens of the sum of all ranks' products: [.., T, K], [K, D] -> [.., T_r, D].

    The ring of `ring.scatter`; but a product writes its sums into memory that the right neighbour reads, who copies
    them to where it adds its own. At 2 ranks: the other's tokens first, then this rank's own, onto what has come.
    With 1 piece and nothing `between`, what has come is added behind the product that hides it: fewer launches.
    Traffic: (p - 1) pieces copies; all but this rank's own tokens, (p-1)/p n bytes where they are equal.
    """
    call = _Scatter(x, matrix, tokens, pieces or usual_pieces(tokens, between), between is None)
    call.slot.wait_free(call.right)
    call.slot.follow()  # from here on the copying stream may write y, the spare room and the slot
    for step in range(len(tokens.sizes)):
        call.multiply(step)
        if step == len(tokens.sizes) - 2 and between is not None:
            between()  # late, so that what it waits for has had time to come
    call.slot.join()
    call.slot.free(call.left)
    return tokens.unblock(call.y, x, tokens.sizes[tokens.rank])


class _Scatter:
    """One call: where its blocks are."""

    def __init__(self, x: Tensor, matrix: Tensor, tokens: Tokens, num_pieces: int, is_alone: bool) -> None:
        self.matrix, self.rank, self.p, self.num_pieces = matrix, tokens.rank, len(tokens.sizes), num_pieces
        self.right, self.left = (self.rank + 1) % self.p, (self.rank - 1) % self.p
        self.whole, self.sizes = tokens.block(x), tokens.num_rows(x)
        b, width = len(self.whole), matrix.shape[1]
        self.y = x.new_empty(b, self.sizes[self.rank], width)
        self.spare = x.new_empty(b * max(self.sizes) * width) if is_alone and num_pieces == 1 else None
        room = aligned(b * max(self.sizes) * width)
        area = area_of("scatter", tokens, x, (self.p - 1) * room * x.itemsize, [self.left])
        self.slot = area.next_slot(x.dtype, room)

    def multiply(self, step: int) -> None:
        """The product for the tokens of rank r - 1 - step, onto what the left neighbour has summed of them."""
        owner, is_last = (self.rank - 1 - step) % self.p, step == self.p - 1
        inputs = self.whole[rows_of(owner, self.sizes, len(self.whole))]
        shape = (*inputs.shape[:2], self.matrix.shape[1])
        sums = self.y if is_last else self.slot.block(self.rank, step, shape)
        theirs = self.slot.block(self.left, step - 1, shape) if step else sums
        for number, at in enumerate(cut(everything(sums), self.num_pieces)):
            if step == 0:
                write_product(inputs[at], self.matrix, sums[at])
            else:
                self._add(inputs[at], theirs[at], sums[at], (step - 1) * self.num_pieces + number)
            if not is_last:
                self.slot.put(self.right, step * self.num_pieces + number)

    def _add(self, inputs: Tensor, theirs: Tensor, into: Tensor, number: int) -> None:
        """A product and the left neighbour's sums: in the product's epilogue, or behind it if all came in 1 piece."""
        if self.spare is None:
            self.slot.pull(theirs, into, self.left, number)
            self.slot.join()
            add_product(inputs, self.matrix, into)
        else:
            come = self.spare[: into.numel()].view(into.shape)
            self.slot.pull(theirs, come, self.left, number)
            write_product(inputs, self.matrix, into)
            self.slot.join()
            into += come
            self.slot.follow()  # the spare room may be written again
