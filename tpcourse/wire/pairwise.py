"""All-to-all in p - 1 rounds: in each, every rank sends one piece and receives one."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from tpcourse.wire.exchange import exchange
from tpcourse.wire.inputs import gathered_sizes, place, require_data, scattered_sizes


def pairwise_all_to_all(
    x: Tensor,
    *,
    group: dist.ProcessGroup,
    send_sizes: Sequence[int] | None = None,
    receive_sizes: Sequence[int] | None = None,
) -> Tensor:
    """Piece j of rank i's x becomes piece i of rank j's result: the transpose of the table of pieces.

    In round s every rank sends to the rank s places to its right and receives from the one s to its left, so
    no rank is addressed by two at once (Thakur, Rabenseifner and Gropp 2005, section 3.3).

    Shapes: [sum(send_sizes), ...] -> [sum(receive_sizes), ...]. Without sizes x is cut by `split_sizes`, and
    what arrives is p pieces as long as the one this rank keeps: true on each rank if all x are equally long.
    Traffic: p - 1 steps; a rank sends all but the piece for itself, (p-1)/p n bytes where pieces are equal.
    Raises: ValueError unless there are p sizes each, they fit x, and a rank sends itself what it receives.
    """
    rank, p = place(group)
    require_data(x, dim=0)
    outgoing = x.split(scattered_sizes(x, send_sizes, p))
    sizes = gathered_sizes(outgoing[rank], receive_sizes, rank, p)
    result = x.new_empty(sum(sizes), *x.shape[1:])
    incoming = result.split(sizes)  # views: what fills a piece fills the result
    incoming[rank].copy_(outgoing[rank])
    for step in range(1, p):
        right, left = (rank + step) % p, (rank - step) % p
        exchange(outgoing[right], right, incoming[left], left, group=group)
    return result
