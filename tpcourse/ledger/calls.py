"""How the arguments of each of torch's c10d operators are read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tpcourse.ledger import traffic
from tpcourse.ledger.groups import Group


@dataclass(slots=True)
class Traits:
    """What one call does, before it is known who made it. `agree`: elements that all ranks must agree on."""

    tensor: Any
    outputs: Sequence[Any]
    sent_received: tuple[int, int]
    agree: int
    numel: int
    shape: tuple[int, ...] | None = None
    peer: int | None = None             # in the group
    reduction: str | None = None
    splits: tuple[int, ...] | None = None
    splits_received: tuple[int, ...] | None = None
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Spec:
    """One operator: the ledger's name for it, and how its arguments are read."""

    op: str
    read: Callable[[Sequence[Any], Group], Traits]


@functools.cache
def _reductions() -> dict[int, str]:
    import torch.distributed as dist

    members = dist.ReduceOp.RedOpType.__members__
    return {int(value): name.lower() for name, value in members.items()}


def _reduction(boxed: Any) -> str:
    try:
        return _reductions()[int(boxed.op())]
    except (AttributeError, KeyError, RuntimeError):
        return "sum"


def _whole(tensors: Sequence[Any]) -> tuple[int, tuple[int, ...] | None]:
    """Elements of several tensors together, and the shape to record when they are more than one."""
    if len(tensors) == 1:
        return tensors[0].numel(), None
    numel = sum(tensor.numel() for tensor in tensors)
    return numel, (numel,)


def _all_reduce(args: Sequence[Any], group: Group) -> Traits:
    tensors = args[0]
    numel, shape = _whole(tensors)
    moved = traffic.all_reduce(numel * tensors[0].element_size(), group.size)
    return Traits(tensors[0], tensors, moved, numel, numel, shape, reduction=_reduction(args[2]))


def _gathered(outputs: Sequence[Any], inputs: Sequence[Any], group: Group) -> Traits:
    tensor = inputs[0]
    numel, shape = _whole(inputs)
    whole, _ = _whole(outputs)
    size = tensor.element_size()
    moved = traffic.all_gather(whole * size, group.size, numel * size)
    return Traits(tensor, outputs, moved, whole, numel, shape)


def _all_gather_base(args: Sequence[Any], group: Group) -> Traits:
    return _gathered([args[0]], [args[1]], group)


def _all_gather_lists(args: Sequence[Any], group: Group) -> Traits:
    return _gathered([tensor for row in args[0] for tensor in row], args[1], group)


def _all_gather_tensors(args: Sequence[Any], group: Group) -> Traits:
    return _gathered(args[0], args[1], group)


def _scattered(outputs: Sequence[Any], inputs: Sequence[Any], boxed: Any, group: Group) -> Traits:
    tensor = inputs[0]
    numel, _ = _whole(inputs)
    moved = traffic.reduce_scatter(numel * tensor.element_size(), group.size)
    shape = joined_shape(inputs) if len(inputs) > 1 else None
    return Traits(tensor, outputs, moved, numel, numel, shape, reduction=_reduction(boxed))


def _reduce_scatter_base(args: Sequence[Any], group: Group) -> Traits:
    return _scattered([args[0]], [args[1]], args[3], group)


def _reduce_scatter_lists(args: Sequence[Any], group: Group) -> Traits:
    return _scattered(args[0], [tensor for row in args[1] for tensor in row], args[3], group)


def _reduce_scatter_tensors(args: Sequence[Any], group: Group) -> Traits:
    numel, shape = _whole(args[1])
    traits = _scattered(args[0], args[1], args[3], group)
    traits.shape = shape
    return traits


def _rooted(args: Sequence[Any], group: Group, root: int, formula: Callable[..., tuple[int, int]]) -> Traits:
    tensor = args[0][0]
    numel = tensor.numel()
    moved = formula(numel * tensor.element_size(), group.size, root == group.index)
    return Traits(tensor, args[0], moved, numel, numel, peer=root)


def _broadcast(args: Sequence[Any], group: Group) -> Traits:
    return _rooted(args, group, args[2], traffic.broadcast)


def _reduce(args: Sequence[Any], group: Group) -> Traits:
    traits = _rooted(args, group, args[3], traffic.reduce)
    traits.reduction = _reduction(args[2])
    return traits


def _pieces(piece: Any, rows: Sequence[Any], group: Group, root: int, formula: Callable[..., Any]) -> Traits:
    """Gather and scatter: the pieces are listed on the root only."""
    size = piece.element_size()
    whole = sum(tensor.numel() for row in rows for tensor in row) or piece.numel() * group.size
    moved = formula(whole * size, piece.numel() * size, root == group.index)
    return Traits(piece, [piece], moved, piece.numel(), piece.numel(), peer=root)


def _gather(args: Sequence[Any], group: Group) -> Traits:
    traits = _pieces(args[1][0], args[0], group, args[3], traffic.gather)
    traits.outputs = [tensor for row in args[0] for tensor in row]
    return traits


def _scatter(args: Sequence[Any], group: Group) -> Traits:
    return _pieces(args[0][0], args[1], group, args[3], traffic.scatter)


def _all_to_all_lists(args: Sequence[Any], group: Group) -> Traits:
    outputs, inputs = args[0], args[1]
    tensor, mine, size = inputs[0], group.index, inputs[0].element_size()
    total, (received, _) = sum(piece.numel() for piece in inputs), _whole(outputs)
    moved = traffic.all_to_all(total * size, inputs[mine].numel() * size,
                               received * size, outputs[mine].numel() * size)
    sent_rows, received_rows = _rows(inputs), _rows(outputs)
    uneven = len({*sent_rows, *received_rows}) > 1
    splits = (sent_rows, received_rows) if uneven else (None, None)
    return Traits(tensor, outputs, moved, 0, total, joined_shape(inputs), None, None, *splits)


def _all_to_all_base(args: Sequence[Any], group: Group) -> Traits:
    output, tensor, size = args[0], args[1], args[1].element_size()
    sent, received = tuple(args[4]), tuple(args[3])
    moved = traffic.all_to_all(tensor.numel() * size, _own(tensor, sent, group) * size,
                               output.numel() * size, _own(output, received, group) * size)
    splits = (sent or None, received or None)
    return Traits(tensor, [output], moved, 0, tensor.numel(), None, None, None, *splits)


def _own(tensor: Any, splits: tuple[int, ...], group: Group) -> int:
    """Elements of the piece that stays on this rank."""
    if not splits:
        return tensor.numel() // group.size
    return splits[group.index] * (tensor.numel() // max(tensor.shape[0], 1))


def _rows(tensors: Sequence[Any]) -> tuple[int, ...]:
    return tuple(tensor.shape[0] if tensor.dim() else 1 for tensor in tensors)


def joined_shape(tensors: Sequence[Any]) -> tuple[int, ...]:
    """The shape of the pieces joined along dim 0; (elements in all,) where they do not fit together."""
    tails = {tuple(tensor.shape[1:]) for tensor in tensors}
    if len(tails) == 1 and all(tensor.dim() for tensor in tensors):
        return (sum(tensor.shape[0] for tensor in tensors), *tails.pop())
    return (sum(tensor.numel() for tensor in tensors),)


def _barrier(args: Sequence[Any], group: Group) -> Traits:
    return Traits(None, [], traffic.barrier(), 0, 0)


def _send(args: Sequence[Any], group: Group) -> Traits:
    return _message(args, traffic.send, args[2], args[3])


def _recv(args: Sequence[Any], group: Group) -> Traits:
    return _message(args, traffic.receive, args[2], args[3])


def _recv_any(args: Sequence[Any], group: Group) -> Traits:
    return _message(args, traffic.receive, None, args[2])


def _message(args: Sequence[Any], formula: Callable[..., Any], peer: int | None, tag: int) -> Traits:
    tensors = args[0]
    numel, shape = _whole(tensors)
    moved = formula(numel * tensors[0].element_size())
    return Traits(tensors[0], tensors, moved, numel, numel, shape, peer, tag=tag)


SPECS = {
    "allreduce_": Spec("all_reduce", _all_reduce),
    "allreduce_coalesced_": Spec("all_reduce", _all_reduce),
    "_allgather_base_": Spec("all_gather", _all_gather_base),
    "allgather_": Spec("all_gather", _all_gather_lists),
    "allgather_coalesced_": Spec("all_gather", _all_gather_lists),
    "allgather_into_tensor_coalesced_": Spec("all_gather", _all_gather_tensors),
    "_reduce_scatter_base_": Spec("reduce_scatter", _reduce_scatter_base),
    "reduce_scatter_": Spec("reduce_scatter", _reduce_scatter_lists),
    "reduce_scatter_tensor_coalesced_": Spec("reduce_scatter", _reduce_scatter_tensors),
    "broadcast_": Spec("broadcast", _broadcast),
    "reduce_": Spec("reduce", _reduce),
    "gather_": Spec("gather", _gather),
    "scatter_": Spec("scatter", _scatter),
    "alltoall_": Spec("all_to_all", _all_to_all_lists),
    "alltoall_base_": Spec("all_to_all", _all_to_all_base),
    "barrier": Spec("barrier", _barrier),
    "monitored_barrier_": Spec("barrier", _barrier),
    "send": Spec("send", _send),
    "recv_": Spec("recv", _recv),
    "recv_any_source_": Spec("recv", _recv_any),
}
