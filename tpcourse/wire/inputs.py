"""What every function of `wire` asks of its input, and the sentence a user reads when it is not so."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.dims import split_sizes


def place(group: dist.ProcessGroup) -> tuple[int, int]:
    """This rank's place in the group, and the group's size.

    Raises: ValueError if this rank is not in the group.
    """
    rank = -1 if group is dist.GroupMember.NON_GROUP_MEMBER else dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in this group: only the group's own ranks may call this, "
            "and each of them must"
        )
    return rank, dist.get_world_size(group)


def require_peer(peer: int, p: int, name: str = "root") -> None:
    """Raises: ValueError unless `peer` is a rank of a group of p."""
    if isinstance(peer, bool) or not isinstance(peer, int) or not 0 <= peer < p:
        raise ValueError(
            f"{name} = {peer} is not a rank of this group of {p}: use 0 to {p - 1} (counted within the group)"
        )


def require_data(x: Tensor, *, dim: int | None = None) -> None:
    """Raises: ValueError if autograd would lose track of x here, and as `require_dim` where a dim is given."""
    if torch.is_grad_enabled() and x.requires_grad:
        raise ValueError(
            "this tensor requires a gradient, and a collective has no backward: the gradient would be lost "
            "or wrong without a word. Use the pairs of tpcourse.conjugates, or pass x.detach()"
        )
    if dim is not None:
        require_dim(x, dim)


def require_dim(x: Tensor, dim: int) -> None:
    """Raises: ValueError if x has no dimension `dim` to cut along."""
    if not -x.dim() <= dim < x.dim():
        fix = "reshape it to one dimension, x.reshape(1)" if x.dim() == 0 else f"use 0 to {x.dim() - 1}"
        raise ValueError(f"a tensor of shape {list(x.shape)} cannot be cut along dim {dim}: {fix}")


def scattered_sizes(x: Tensor, sizes: Sequence[int] | None, p: int, dim: int = 0) -> list[int]:
    """Sizes of the p pieces of x along dim: as given, else as even as possible.

    Raises: ValueError unless there are p sizes that sum to the length.
    """
    n = x.shape[dim]
    if sizes is None:
        return split_sizes(n, p)
    _require_count(sizes, p)
    if sum(sizes) != n:
        raise ValueError(
            f"sizes = {list(sizes)} sum to {sum(sizes)}, but dim {dim} is {n} long: the pieces must fill it"
        )
    return list(sizes)


def gathered_sizes(shard: Tensor, sizes: Sequence[int] | None, rank: int, p: int, dim: int = 0) -> list[int]:
    """Sizes of all ranks' shards along dim: as given, else all equal to this one.

    Raises: ValueError unless there are p sizes and this rank's is its shard's.
    """
    n = shard.shape[dim]
    if sizes is None:
        return [n] * p
    _require_count(sizes, p)
    if sizes[rank] != n:
        raise ValueError(
            f"sizes[{rank}] = {sizes[rank]}, but this rank's own piece is {n} long in dim {dim}: "
            f"give sizes[{rank}] = {n}, and the same list on every rank"
        )
    return list(sizes)


def _require_count(sizes: Sequence[int], p: int) -> None:
    if len(sizes) != p:
        raise ValueError(f"{len(sizes)} sizes for a group of {p} ranks: give one size per rank, 0 for an empty piece")
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in sizes):
        raise ValueError(f"sizes = {list(sizes)} must be whole numbers, none negative")
