"""Cases that every collective is tried on, and the comparison with the one-device truth, inside a rank.

Elements are small whole numbers in float64, so sums are exact in any order and results must be equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse import reference, wire
from tpcourse.dims import split_sizes

LENGTHS = (0, 1, 2, 5, 12, 13)
ALL_REDUCES = ("all_reduce", "naive_all_reduce", "ring_all_reduce", "tree_all_reduce", "halving_doubling_all_reduce")
REDUCE_SCATTERS = ("reduce_scatter", "ring_reduce_scatter", "halving_reduce_scatter")
ALL_GATHERS = ("all_gather", "ring_all_gather", "doubling_all_gather")
BROADCASTS = ("broadcast", "naive_broadcast", "tree_broadcast")
REDUCES = ("reduce", "naive_reduce", "tree_reduce")
SCATTERS = ("scatter", "naive_scatter")
GATHERS = ("gather", "naive_gather")
ALL_TO_ALLS = ("all_to_all", "pairwise_all_to_all")

Case = tuple[str, list[Tensor], list[Tensor | None], Callable[..., Tensor | None]]
"""What it is, every rank's input, every rank's truth, and the call to try."""


def make(rank: int, shape: tuple[int, ...], device: str = "cpu") -> Tensor:
    """This rank's whole numbers; any rank can make any other rank's."""
    generator = torch.Generator().manual_seed(1000 * rank + sum(shape))
    return torch.randint(-9, 10, shape, generator=generator).to(device, torch.float64)


def whole(p: int, *, scalars: bool = True) -> Iterator[tuple[str, list[Tensor]]]:
    """Inputs of equal shape on all ranks: all lengths, one and two dims, a scalar, not contiguous."""
    for n in LENGTHS:
        yield f"n = {n}", [make(r, (n,)) for r in range(p)]
        yield f"shape {n}, 3", [make(r, (n, 3)) for r in range(p)]
    yield "transposed", [make(r, (3, 5)).T for r in range(p)]
    yield "every second", [make(r, (14,))[::2] for r in range(p)]
    if scalars:
        yield "a scalar", [make(r, ()) for r in range(p)]


def uneven(p: int) -> Iterator[list[int]]:
    """Sizes of pieces: as even as possible, growing, all on one rank, none."""
    yield from (split_sizes(n, p) for n in LENGTHS)
    yield [2 * r for r in range(p)]
    yield [0] * (p - 1) + [5]


def all_reduce_cases(p: int, fn: Callable[..., Tensor]) -> Iterator[Case]:
    for name, xs in whole(p):
        yield name, xs, reference.all_reduce(xs), fn


def reduce_scatter_cases(p: int, fn: Callable[..., Tensor]) -> Iterator[Case]:
    for name, xs in whole(p, scalars=False):
        yield name, xs, reference.reduce_scatter(xs), fn
    for sizes in uneven(p):
        xs = [make(r, (sum(sizes), 2)) for r in range(p)]
        yield f"sizes {sizes}", xs, reference.reduce_scatter(xs, sizes=sizes), partial(fn, sizes=sizes)


def all_gather_cases(p: int, fn: Callable[..., Tensor]) -> Iterator[Case]:
    for name, xs in whole(p, scalars=False):
        yield name, xs, reference.all_gather(xs), fn
    for sizes in uneven(p):
        xs = [make(r, (sizes[r], 2)) for r in range(p)]
        yield f"sizes {sizes}", xs, reference.all_gather(xs), partial(fn, sizes=sizes)


def rooted_cases(p: int, fn: Callable[..., Tensor], kind: str) -> Iterator[Case]:
    """Broadcast and reduce from every root."""
    truth = getattr(reference, kind)
    for root in range(p):
        for name, xs in whole(p):
            yield f"root {root}, {name}", xs, truth(xs, root=root), partial(fn, root=root)


def scatter_cases(p: int, fn: Callable[..., Tensor]) -> Iterator[Case]:
    for root in range(p):
        for sizes in uneven(p):
            xs = [make(r, (sum(sizes), 2)) for r in range(p)]
            truth = reference.scatter(xs, root=root, sizes=sizes)
            yield f"root {root}, sizes {sizes}", xs, truth, partial(fn, root=root, sizes=sizes)
        xs = [make(r, (3, 2 * p + 1)).T for r in range(p)]
        yield f"root {root}, transposed", xs, reference.scatter(xs, root=root), partial(fn, root=root)


def gather_cases(p: int, fn: Callable[..., Tensor]) -> Iterator[Case]:
    for root in range(p):
        for sizes in uneven(p):
            xs = [make(r, (sizes[r], 2)) for r in range(p)]
            truth = reference.gather(xs, root=root)
            yield f"root {root}, sizes {sizes}", xs, truth, partial(fn, root=root, sizes=sizes)
        xs = [make(r, (3, 2)).T for r in range(p)]
        yield f"root {root}, transposed", xs, reference.gather(xs, root=root), partial(fn, root=root)


def all_to_all_cases(p: int, fn: Callable[..., Tensor], rank: int) -> Iterator[Case]:
    xs = [make(r, (3, 2 * p)).T for r in range(p)]
    yield "equal, transposed", xs, reference.all_to_all(xs), fn
    for name, table in {
        "uneven": [[(2 * s + 3 * r) % 5 for r in range(p)] for s in range(p)],
        "all to one": [[3] + [0] * (p - 1) for _ in range(p)],
        "nothing": [[0] * p for _ in range(p)],
    }.items():
        xs = [make(s, (sum(table[s]), 2)) for s in range(p)]
        sizes = {"send_sizes": table[rank], "receive_sizes": [row[rank] for row in table]}
        yield name, xs, reference.all_to_all(xs, table), partial(fn, **sizes)


def cases(name: str, rank: int, p: int, fn: Callable[..., Tensor] | None = None) -> Iterator[Case]:
    """The cases for a function of `wire`, or for another that claims to be the same."""
    fn = fn or getattr(wire, name)
    if name in ALL_REDUCES:
        return all_reduce_cases(p, fn)
    if name in REDUCE_SCATTERS:
        return reduce_scatter_cases(p, fn)
    if name in ALL_GATHERS:
        return all_gather_cases(p, fn)
    if name in ALL_TO_ALLS:
        return all_to_all_cases(p, fn, rank)
    if name in SCATTERS:
        return scatter_cases(p, fn)
    if name in GATHERS:
        return gather_cases(p, fn)
    return rooted_cases(p, fn, "broadcast" if name in BROADCASTS else "reduce")


def mistakes(
    rank: int, group: dist.ProcessGroup, name: str, fn: Callable[..., Tensor] | None = None, device: str = "cpu"
) -> list[str]:
    """One sentence per case in which this rank holds something else than the truth. Empty if all is right."""
    found = []
    for what, xs, truths, call in cases(name, rank, dist.get_world_size(group), fn):
        x = xs[rank].to(device)
        before, version = x.clone(), x._version
        result = call(x, group=group)
        found += [f"{name}, {what}, rank {rank}: {fault}" for fault in _faults(result, truths[rank], x)]
        if x._version != version or not torch.equal(x, before):
            found.append(f"{name}, {what}, rank {rank}: the input was modified")
    return found


def _faults(result: Tensor | None, truth: Tensor | None, x: Tensor) -> Iterator[str]:
    if truth is None or result is None:
        if result is not truth:
            yield f"expected {truth}, got {result}"
        return
    if result.shape != truth.shape or not torch.equal(result.cpu(), truth):
        yield f"expected {truth.tolist()}, got {result.tolist()}"
    if not result.is_contiguous():
        yield "the result is not contiguous"
    if result.numel() and result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        yield "the result shares memory with the input"
