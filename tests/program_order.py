"""What a rank's program does, in order: products, sums, collectives and waits as they begin."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

WORDS = {"allgather_base": "all-gather", "reduce_scatter_base": "scatter-sum", "allreduce": "all-reduce"}


class _Order(TorchDispatchMode):
    def __init__(self, operations: tuple[str, ...]) -> None:
        super().__init__()
        self.operations, self.names = operations, list[str]()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        name = op._schema.name.split("::")[1].strip("_")
        if name in self.operations or op._schema.name.startswith("c10d::"):
            self.names.append(WORDS.get(name, name))
        return op(*args, **(kwargs or {}))


def in_order(run: Callable[[], object], operations: tuple[str, ...]) -> list[str]:
    """Names of these operations, of all messages and of waits, as `run` comes to them."""
    order, wait = _Order(operations), dist.Work.wait
    dist.Work.wait = lambda work, *args: (order.names.append("wait"), wait(work, *args))[1]
    try:
        with order:
            run()
    finally:
        dist.Work.wait = wait
    return order.names
