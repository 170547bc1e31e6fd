"""The collectives of ZeRO on flat arrays. `dp=None` is one device: nothing is sent."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tpcourse.wire.inputs import place
from tpcourse.wire.torch_calls import all_gather_single, reduce_scatter_single


def place_in(dp: dist.ProcessGroup | None) -> tuple[int, int]:
    """This rank's place in the group, and the group's size."""
    return (0, 1) if dp is None else place(dp)


def scatter_average(array: Tensor, *, dp: dist.ProcessGroup | None) -> tuple[Tensor, dist.Work | None]:
    """Begin (1/p) sum_r array_r, of which this rank gets piece r. Shapes: [p n] -> [n].

    Traffic: one reduce-scatter, (p-1)/p of the array. NCCL divides on the way; elsewhere the array is divided.
    """
    if dp is None:
        return array, None
    p = place(dp)[1]
    piece = array.new_empty(array.numel() // p)
    op = dist.ReduceOp.AVG if array.is_cuda and "nccl" in dist.get_backend(dp) else dist.ReduceOp.SUM
    if op is dist.ReduceOp.SUM:
        array /= p
    return piece, reduce_scatter_single(piece, array, op=op, group=dp, async_op=True)


def gather_pieces(whole: Tensor, piece: Tensor, *, dp: dist.ProcessGroup | None) -> dist.Work | None:
    """Begin to write all ranks' pieces to `whole`. Shapes: [p n], [n]. Traffic: one all-gather, (p-1)/p of `whole`."""
    if dp is None:
        whole.copy_(piece)
        return None
    return all_gather_single(whole, piece, group=dp, async_op=True)


def broadcast_from_first(tensor: Tensor, *, dp: dist.ProcessGroup | None) -> None:
    """Overwrite a tensor with that of the first rank. Traffic: one broadcast."""
    if dp is not None:
        dist.broadcast(tensor, src=dist.get_global_rank(dp, 0), group=dp)


def sum_over(number: Tensor, *groups: dist.ProcessGroup | None) -> Tensor:
    """The sum of one number over the ranks of each group, in place. Traffic: one all-reduce for each group."""
    for group in groups:
        if group is not None:
            dist.all_reduce(number, group=group)
    return number


def wait_for(work: dist.Work | None) -> None:
    """Wait, where something was sent."""
    if work is not None:
        work.wait()
