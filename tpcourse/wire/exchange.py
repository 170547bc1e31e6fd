"""The primitive that every algorithm in this folder is made of: send to a rank while receiving from one."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from tpcourse.wire.inputs import place, require_data, require_peer


def exchange(
    outgoing: Tensor | None,
    to: int | None,
    incoming: Tensor | None,
    from_: int | None,
    *,
    group: dist.ProcessGroup,
) -> None:
    """Send `outgoing` to rank `to` while `incoming` is filled by rank `from_`; return when both are done.

    Both directions are posted before either is waited for. If every rank of a ring sent first and received
    afterwards, all would wait for a receiver: a send is finished only when its receive is there.
    Give None for a direction that is not wanted. `incoming` is overwritten; `outgoing` is only read.

    Shapes: any; sender and receiver must agree on shape and dtype. No elements is allowed, and is still a
    message.
    Traffic: one step; this rank sends the bytes of `outgoing`.
    Raises: ValueError if a peer is not another rank of the group, a tensor comes without its peer, `incoming`
    is not contiguous, or the two tensors share memory.
    Trap: on NCCL "done" means done for the current stream; the CPU may run ahead. The first call on a group
    made without `device_id` must be made by all of its ranks, as NCCL connects them then.
    """
    rank, p = place(group)
    requests = []
    _require_pair(outgoing, to, "to", rank, p)
    _require_pair(incoming, from_, "from_", rank, p)
    if outgoing is not None:
        outgoing = outgoing.contiguous()  # kept alive here until the wait below
        requests.append(dist.P2POp(dist.isend, outgoing, dist.get_global_rank(group, to), group))
    if incoming is not None:
        _require_room(incoming, outgoing)
        requests.append(dist.P2POp(dist.irecv, incoming, dist.get_global_rank(group, from_), group))
    if requests:
        for request in dist.batch_isend_irecv(requests):
            request.wait()


def send(x: Tensor, *, to: int, group: dist.ProcessGroup) -> None:
    """Send x to rank `to` of the group; return when it may be changed again. Otherwise as `exchange`."""
    exchange(x, to, None, None, group=group)


def receive(into: Tensor, *, from_: int, group: dist.ProcessGroup) -> None:
    """Fill `into` with what rank `from_` of the group sends. Otherwise as `exchange`."""
    exchange(None, None, into, from_, group=group)


def _require_pair(x: Tensor | None, peer: int | None, name: str, rank: int, p: int) -> None:
    if x is None and peer is None:
        return
    if x is None or peer is None:
        raise ValueError(f"{name} = {peer} and its tensor belong together: give both, or None for both")
    require_data(x)
    require_peer(peer, p, name)
    if peer == rank:
        raise ValueError(f"{name} = {peer} is this rank itself: copy the tensor instead")


def _require_room(incoming: Tensor, outgoing: Tensor | None) -> None:
    if not incoming.is_contiguous():
        raise ValueError(
            f"the tensor to receive into (shape {list(incoming.shape)}, strides {list(incoming.stride())}) "
            "is not contiguous: receive into torch.empty(shape) and copy"
        )
    if outgoing is not None and _overlap(incoming, outgoing):
        raise ValueError(
            "the outgoing and the incoming tensor share memory: what arrives would overwrite what still has "
            "to leave. Receive into torch.empty_like(incoming) and copy"
        )


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two contiguous tensors share a byte."""
    a_end, b_end = (x.data_ptr() + x.numel() * x.element_size() for x in (a, b))
    return a.data_ptr() < b_end and b.data_ptr() < a_end
