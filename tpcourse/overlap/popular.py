"""The forms that circulate, and hide nothing: here to be measured, and read beside `ring`.

The ring multiplies first and sends afterwards, and waits for its message at once. The sum is one reduce a piece: each
begins only behind its product, and for each all ranks send to one, so that a single link carries what all could.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch.distributed as dist
from torch import Tensor

from tpcourse.overlap.parts import Part, rows_of
from tpcourse.overlap.products import write_product
from tpcourse.overlap.ring import pass_on, rooms
from tpcourse.overlap.tokens import Tokens


def arriving(
    x: Tensor, tokens: Tokens, *, pieces: int | None = None, is_apart: bool = False, with_whole: bool = False
) -> Iterator[Part]:
    """As `ring.arriving`, but each message is posted behind what is done with the part, and waited for at once.

    Traffic: that of `ring.arriving`.
    """
    held = rooms(x, tokens)
    for part, coming in pairwise(held):
        yield part
        for work in pass_on(part.block, coming.block, tokens):
            work.wait()
    yield held[-1]


def scatter(
    x: Tensor,
    matrix: Tensor,
    tokens: Tokens,
    *,
    pieces: int | None = None,
    between: Callable[[], object] | None = None,
) -> Tensor:
    """As `serial.scatter`, with one reduce for each rank's tokens, all of them waited for before `between`.

    Traffic: p reduces; a rank sends (p-1)/p n bytes, as in a reduce-scatter, but not to all at once.
    """
    sizes, whole, sums, works = tokens.num_rows(x), tokens.block(x), [], []
    for owner in range(len(sizes)):
        block = whole[rows_of(owner, sizes, len(whole))]
        sums.append(x.new_empty(*block.shape[:2], matrix.shape[1]))
        write_product(block, matrix, sums[-1])
        to = dist.get_global_rank(tokens.tp, owner)
        works.append(dist.reduce(sums[-1], dst=to, group=tokens.tp, async_op=True))
    for work in works:
        work.wait()
    if between is not None:
        between()
    return tokens.unblock(sums[tokens.rank], x, tokens.sizes[tokens.rank])
