"""Copies from memory to memory on a stream of their own, by the GPU's copy engines: products lose no multiprocessor.

Written for GPUs of one host that reach each other's memory (`torch.distributed._symmetric_memory`). The ledger does
not see these copies. What orders them are signals (see `area`): a block is read behind the signal that it has come,
and overwritten behind the signal that it was read.
"""

from __future__ import annotations

from torch import Tensor

from tpcourse.overlap.area import aligned, area_of
from tpcourse.overlap.products import add_product, cut, write_product
from tpcourse.overlap.tokens import Tokens


def gather(
    x: Tensor, matrix: Tensor, bias: Tensor | None, tokens: Tokens, *, keep: bool = True, pieces: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """The product of all ranks' tokens, and these: [.., T_r, D], [D, N] -> [.., T, N] and [.., T, D].

    Each rank writes its tokens into the others' memory, in `pieces` (1), and multiplies its own from where they are;
    then the others', from where they came. What backward needs is copied under these products.
    Traffic: p - 1 copies of this rank's tokens, (p-1)/p n bytes where they are equal.
    """
    call = _Gather(x, matrix, bias, tokens, keep, pieces or 1)
    with call.slot.beside():  # behind what the current stream has now
        for to in call.others:
            call.push(to)
        call.keep_own()
    write_product(call.mine, matrix, call.outs[tokens.rank], bias)
    for from_ in reversed(call.others):
        call.multiply(from_)
    call.slot.join()
    for from_ in call.others:
        call.slot.free(from_)
    return tokens.unblock_all(call.y, x), tokens.unblock_all(call.whole, x) if keep else None


class _Gather:
    """One call: where its blocks are."""

    def __init__(
        self, x: Tensor, matrix: Tensor, bias: Tensor | None, tokens: Tokens, keep: bool, num_pieces: int
    ) -> None:
        self.matrix, self.bias, self.rank, self.keep, self.num_pieces = matrix, bias, tokens.rank, keep, num_pieces
        self.mine, self.sizes, p = tokens.block(x), tokens.num_rows(x), len(tokens.sizes)
        self.others = [(self.rank + step) % p for step in range(1, p)]  # no two ranks begin with the same one
        b, _, width = self.mine.shape
        self.y = self.mine.new_empty(b, sum(self.sizes), matrix.shape[1])
        self.whole = self.mine.new_empty(b, sum(self.sizes) if keep else 0, width)
        self.outs = self.y.split(self.sizes, 1)
        self.kept = self.whole.split(self.sizes if keep else [0] * p, 1)
        room = aligned(b * max(self.sizes) * width)
        area = area_of("gather", tokens, x, p * room * x.itemsize, self.others)
        self.slot = area.next_slot(x.dtype, room)

    def push(self, to: int) -> None:
        """Write this rank's tokens into another rank's memory, each piece with its signal."""
        self.slot.wait_free(to)
        there = self.slot.block(to, self.rank, self.mine.shape)
        for number, (piece, room) in enumerate(zip(self._cut(self.mine), self._cut(there), strict=True)):
            room.copy_(piece)
            self.slot.put(to, number)

    def keep_own(self) -> None:
        """What backward needs of this rank's own tokens."""
        if self.keep:
            self.kept[self.rank].copy_(self.mine)

    def multiply(self, from_: int) -> None:
        """The product of another rank's tokens, each piece behind its signal; beside it, its copy for backward."""
        come = self.slot.block(self.rank, from_, (len(self.mine), self.sizes[from_], self.mine.shape[2]))
        outs, kept = self._cut(self.outs[from_]), self._cut(self.kept[from_])
        for number, (piece, out, copy) in enumerate(zip(self._cut(come), outs, kept, strict=True)):
            self.slot.wait(from_, number)
            if self.keep:
                with self.slot.beside():
                    copy.copy_(piece)
            write_product(piece, self.matrix, out, self.bias)

    def _cut(self, block: Tensor) -> tuple[Tensor, ...]:
        return cut(block, self.num_pieces)


def scatter(x: Tensor, matrix: Tensor, tokens: Tokens, *, pieces: int | None = None) -> Tensor:
    """This rank's tokens of the sum of all ranks' products: [.., T, K], [K, D] -> [.., T_r, D].

    The ring of `ring.scatter`; but a product writes its sums into memory that the right neighbour reads, who copies
    them to where it adds its own. At 2 ranks: the other's tokens first, then this rank's own, onto what has come.
    Traffic: (p - 1) pieces copies; all but this rank's own tokens, (p-1)/p n bytes where they are equal.
    """
    call = _Scatter(x, matrix, tokens, pieces or 2)
    call.slot.wait_free(call.right)
    call.slot.follow()  # from here on the copying stream may write y and the slot
    for step in range(len(tokens.sizes)):
        call.multiply(step)
    call.slot.join()
    call.slot.free(call.left)
    return tokens.unblock(call.y, x, tokens.sizes[tokens.rank])


class _Scatter:
    """One call: where its blocks are."""

    def __init__(self, x: Tensor, matrix: Tensor, tokens: Tokens, num_pieces: int) -> None:
        self.matrix, self.rank, self.p, self.num_pieces = matrix, tokens.rank, len(tokens.sizes), num_pieces
        self.right, self.left = (self.rank + 1) % self.p, (self.rank - 1) % self.p
        whole, sizes = tokens.block(x), tokens.num_rows(x)
        self.inputs = whole.split(sizes, 1)
        self.y = x.new_empty(len(whole), sizes[self.rank], matrix.shape[1])
        room = aligned(len(whole) * max(sizes) * matrix.shape[1])
        area = area_of("scatter", tokens, x, (self.p - 1) * room * x.itemsize, [self.left])
        self.slot = area.next_slot(x.dtype, room)

    def multiply(self, step: int) -> None:
        """The product for the tokens of rank r - 1 - step, onto what the left neighbour has summed of them."""
        inputs = self.inputs[(self.rank - 1 - step) % self.p]
        shape, is_last = (*inputs.shape[:2], self.matrix.shape[1]), step == self.p - 1
        sums = self.y if is_last else self.slot.block(self.rank, step, shape)
        theirs = self.slot.block(self.left, step - 1, shape) if step else sums
        for at, (block, into, come) in enumerate(zip(*map(self._cut, (inputs, sums, theirs)), strict=True)):
            if step == 0:
                write_product(block, self.matrix, into)
            else:
                self.slot.pull(come, into, self.left, (step - 1) * self.num_pieces + at)
                add_product(block, self.matrix, into)
            if not is_last:
                self.slot.put(self.right, step * self.num_pieces + at)

    def _cut(self, block: Tensor) -> tuple[Tensor, ...]:
        return cut(block, self.num_pieces)
