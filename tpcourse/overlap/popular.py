"""The forms that circulate, and hide nothing: here to be measured, and read beside `ring`.

The ring multiplies first and sends afterwards, and waits for its message at once. The sum is one reduce a piece: each
begins only behind its product, and for each all ranks send to one, so that a single link carries what all could.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tpcourse.overlap.products import write_product
from tpcourse.overlap.ring import pass_on, room
from tpcourse.overlap.tokens import Tokens


def gather(
    x: Tensor, matrix: Tensor, bias: Tensor | None, tokens: Tokens, *, keep: bool = True, pieces: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """As `ring.gather`, but each message is posted behind the product, and waited for before the next.

    Traffic: that of `ring.gather`.
    """
    rank, p, mine, sizes = tokens.rank, len(tokens.sizes), tokens.block(x), tokens.num_rows(x)
    space = room(mine, sizes, rank)
    held = space.held
    y = mine.new_empty(len(mine), sum(sizes), matrix.shape[1])
    outs = y.split(sizes, 1)  # views
    for step in range(p):
        now, coming = (rank - step) % p, (rank - step - 1) % p
        write_product(held[now], matrix, outs[now], bias)
        if step < p - 1:
            for work in pass_on(held[now], held[coming], tokens):
                work.wait()
    return tokens.unblock_all(y, x), tokens.unblock_all(space.joined(), x) if keep else None


def scatter(x: Tensor, matrix: Tensor, tokens: Tokens, *, pieces: int | None = None) -> Tensor:
    """As `serial.scatter`, with one reduce for each rank's tokens.

    Traffic: p reduces; a rank sends (p-1)/p n bytes, as in a reduce-scatter, but not to all at once.
    """
    inputs, sums, works = tokens.block(x).split(tokens.num_rows(x), 1), [], []
    for owner, block in enumerate(inputs):
        sums.append(x.new_empty(*block.shape[:2], matrix.shape[1]))
        write_product(block, matrix, sums[-1])
        to = dist.get_global_rank(tokens.tp, owner)
        works.append(dist.reduce(sums[-1], dst=to, group=tokens.tp, async_op=True))
    for work in works:
        work.wait()
    return tokens.unblock(sums[tokens.rank], x, tokens.sizes[tokens.rank])
