"""Pieces passed round a ring while the next product runs: send and receive only, on gloo and on NCCL.

Collective matmul (Wang et al., "Overlap communication with dependent computation via decomposition in large deep
learning models", ASPLOS 2023). On NCCL, messages run on a stream of their own, which waits for what the current
stream was given before: so each message is posted before the product that hides it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.overlap.products import add_product, cut, write_product
from tpcourse.overlap.tokens import Tokens


def gather(
    x: Tensor, matrix: Tensor, bias: Tensor | None, tokens: Tokens, *, keep: bool = True, pieces: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """The product of all ranks' tokens, and these: [.., T_r, D], [D, N] -> [.., T, N] and [.., T, D].

    In step s, rank r multiplies the tokens of rank r - s, which it also passes on, while those of r - s - 1 come.
    Traffic: p - 1 messages; rank r sends every piece but that of rank r + 1, (p-1)/p n bytes where they are equal.
    """
    rank, p, mine = tokens.rank, len(tokens.sizes), tokens.block(x)
    sizes = tokens.num_rows(x)
    space = room(mine, sizes, rank)
    held = space.held
    y = mine.new_empty(len(mine), sum(sizes), matrix.shape[1])
    outs = y.split(sizes, 1)  # views
    for step in range(p):
        now, coming = (rank - step) % p, (rank - step - 1) % p
        under_way = pass_on(held[now], held[coming], tokens) if step < p - 1 else []
        write_product(held[now], matrix, outs[now], bias)
        for work in under_way:
            work.wait()
    return tokens.unblock_all(y, x), tokens.unblock_all(space.joined(), x) if keep else None


def scatter(x: Tensor, matrix: Tensor, tokens: Tokens, *, pieces: int | None = None) -> Tensor:
    """This rank's tokens of the sum of all ranks' products: [.., T, K], [K, D] -> [.., T_r, D].

    The sum for rank c starts on rank c + 1 and travels to the right; each rank adds its product to what came, in the
    product's own epilogue. It travels in `pieces` (2): while one is under way, the other is multiplied.
    Traffic: (p - 1) pieces messages; rank r sends all but its own tokens, (p-1)/p n bytes where they are equal.
    Trap: with 1 piece the next product waits for the sum that it adds to, and nothing is hidden.
    """
    rank, p, num_pieces = tokens.rank, len(tokens.sizes), pieces or 2
    order = [(rank - 1 - step) % p for step in range(p)]  # this rank's own tokens last
    inputs = tokens.block(x).split(tokens.num_rows(x), 1)  # views
    rooms = [x.new_empty(*inputs[owner].shape[:2], matrix.shape[1]) for owner in order]
    sums = [cut(room, num_pieces) for room in rooms]
    coming: list[list[dist.Work]] = [[]] * num_pieces
    for step, owner in enumerate(order):
        for at, block in enumerate(cut(inputs[owner], num_pieces)):
            for work in coming[at]:
                work.wait()
            if step == 0:
                write_product(block, matrix, sums[0][at])
            else:
                add_product(block, matrix, sums[step][at])
            if step < p - 1:
                coming[at] = pass_on(sums[step][at], sums[step + 1][at], tokens)
    return tokens.unblock(rooms[-1], x, tokens.sizes[rank])


def pass_on(outgoing: Tensor, incoming: Tensor, tokens: Tokens) -> list[dist.Work]:
    """Begin to send to the right and receive from the left; both tensors are busy until the works were waited for."""
    p = len(tokens.sizes)
    right, left = (dist.get_global_rank(tokens.tp, (tokens.rank + way) % p) for way in (1, -1))
    sending = dist.P2POp(dist.isend, outgoing, right, tokens.tp)
    return dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, incoming, left, tokens.tp)])


class Room(NamedTuple):
    """A contiguous block for each rank's tokens, `held`, of which this rank's is where it was.

    Where b is 1 the others are views of one array, `whole`, which lacks only this rank's.
    """

    rank: int
    whole: Tensor | None
    held: list[Tensor]

    def joined(self) -> Tensor:
        """All tokens in one array, for the weight's gradient: [b, R, D]."""
        if self.whole is None:
            return torch.cat(self.held, 1)
        self.whole.split([block.shape[1] for block in self.held], 1)[self.rank].copy_(self.held[self.rank])
        return self.whole


def room(mine: Tensor, sizes: list[int], rank: int) -> Room:
    """Room for the blocks of all ranks."""
    b, _, width = mine.shape
    whole = mine.new_empty(1, sum(sizes), width) if b == 1 else None
    held = list(whole.split(sizes, 1)) if whole is not None else [mine.new_empty(b, size, width) for size in sizes]
    held[rank] = mine
    return Room(rank, whole, held)
