"""Pieces passed round a ring while the next product runs: send and receive only, on gloo and on NCCL.

Collective matmul (Wang et al., "Overlap communication with dependent computation via decomposition in large deep
learning models", ASPLOS 2023). On NCCL, messages run on a stream of their own, which waits for what the current
stream was given before: so each message is posted before the product that hides it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch.distributed as dist
from torch import Tensor

from tpcourse.overlap.parts import Part, cut, everything, rows_of
from tpcourse.overlap.products import add_product, write_product
from tpcourse.overlap.tokens import Tokens

Works = list[dist.Work]


def arriving(
    x: Tensor, tokens: Tokens, *, pieces: int | None = None, is_apart: bool = False, with_whole: bool = False
) -> Iterator[Part]:
    """All ranks' tokens as they come, this rank's first: [.., T_r, D] -> p parts of [b, R, D].

    In step s, rank r hands out the tokens of rank r - s, which it also passes on, while those of r - s - 1 come: they
    are hidden under what is done with the part. The first message begins at once.
    Traffic: p - 1 messages; rank r sends every piece but that of rank r + 1, (p-1)/p n bytes where they are equal.
    """
    held = rooms(x, tokens)
    return _arriving(held, pass_on(held[0].block, held[1].block, tokens), tokens)


def _arriving(held: list[Part], under_way: Works, tokens: Tokens) -> Iterator[Part]:
    for step, part in enumerate(held):
        yield part
        for work in under_way:
            work.wait()
        left = held[step + 1 : step + 3]
        under_way = pass_on(left[0].block, left[1].block, tokens) if len(left) == 2 else []


def rooms(x: Tensor, tokens: Tokens) -> list[Part]:
    """The parts in the order in which they come: this rank's tokens, then room for those of r - 1, r - 2, ..."""
    mine, sizes, p = tokens.block(x), tokens.num_rows(x), len(tokens.sizes)
    b, _, width = mine.shape
    owners = [(tokens.rank - step) % p for step in range(p)]
    blocks = [mine, *(mine.new_empty(b, sizes[owner], width) for owner in owners[1:])]
    return [Part(rows_of(owner, sizes, b), block) for owner, block in zip(owners, blocks, strict=True)]


def scatter(
    x: Tensor,
    matrix: Tensor,
    tokens: Tokens,
    *,
    pieces: int | None = None,
    between: Callable[[], object] | None = None,
) -> Tensor:
    """This rank's tokens of the sum of all ranks' products: [.., T, K], [K, D] -> [.., T_r, D].

    The sum for rank c starts on rank c + 1 and travels to the right; each rank adds its product to what came, in the
    product's own epilogue. It travels in pieces: while one is under way, the other is multiplied. `between`, work
    that does not need the sum, hides the first way too.
    Traffic: (p - 1) pieces messages; rank r sends all but its own tokens, (p-1)/p n bytes where they are equal.
    Trap: with 1 piece the next product waits for the sum that it adds to, and only `between` hides anything.
    """
    p, num_pieces = len(tokens.sizes), pieces or usual_pieces(tokens, between)
    sizes, whole = tokens.num_rows(x), tokens.block(x)
    owners = [(tokens.rank - 1 - step) % p for step in range(p)]  # this rank's own tokens last
    inputs = [whole[rows_of(owner, sizes, len(whole))] for owner in owners]  # views
    sums = [x.new_empty(*block.shape[:2], matrix.shape[1]) for block in inputs]
    coming: list[Works] = [[] for _ in range(num_pieces)]
    for step in range(p):
        for number, at in enumerate(cut(everything(sums[step]), num_pieces)):
            for work in coming[number]:
                work.wait()
            multiply = add_product if step else write_product
            multiply(inputs[step][at], matrix, sums[step][at])
            if step < p - 1:
                there = cut(everything(sums[step + 1]), num_pieces)[number]
                coming[number] = pass_on(sums[step][at], sums[step + 1][there], tokens)
        if step == 0 and between is not None:
            between()
    return tokens.unblock(sums[-1], x, tokens.sizes[tokens.rank])


def usual_pieces(tokens: Tokens, between: object) -> int:
    """1 where other work hides the only way that a sum goes, else 2."""
    return 1 if between is not None and len(tokens.sizes) == 2 else 2


def pass_on(outgoing: Tensor, incoming: Tensor, tokens: Tokens) -> Works:
    """Begin to send to the right and receive from the left; both tensors are busy until the works were waited for."""
    p = len(tokens.sizes)
    right, left = (dist.get_global_rank(tokens.tp, (tokens.rank + way) % p) for way in (1, -1))
    sending = dist.P2POp(dist.isend, outgoing, right, tokens.tp)
    return dist.batch_isend_irecv([sending, dist.P2POp(dist.irecv, incoming, left, tokens.tp)])
