"""The process groups of one rank: joined on a store, remembered as they are made, left and made again after a hang."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from tpcourse import ledger
from tpcourse.engine.quiet import Loops
from tpcourse.engine.renew import Renewal

TIME_OUT = timedelta(minutes=15)  # far above any patience: the watcher, not torch, ends a wait
ABORT_S = 5.0

SETTINGS = {
    "gloo": {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"},
    "nccl": {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # torch would end the process
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_HIGH_PRIORITY": "1",  # else a product that is launched beside a collective takes the GPU first
        "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false",
    },
}


class Groups:
    """Joins the world, remembers every sub-group in the order of creation, and can make all of them again."""

    def __init__(self, backend: str, device: Any) -> None:
        self.backend, self.device = backend, device
        self.world: Any = None
        self.made: list[tuple[tuple, dict, Any]] = []
        self.making: str | None = None
        self.left: list[Any] = []
        self.loops = Loops()
        for variable, value in SETTINGS[backend].items():
            os.environ.setdefault(variable, value)
        make = getattr(distributed_c10d.new_group, "__tpcourse__", distributed_c10d.new_group)
        self._put("new_group", self._remembering(make))
        if hasattr(distributed_c10d, "split_group"):
            self._put("split_group", _split)

    def _put(self, name: str, function: Callable[..., Any]) -> None:
        """Let every module of torch that made a name of `name` call `function`."""
        for module in (distributed_c10d, dist, device_mesh):
            if hasattr(module, name):
                setattr(module, name, function)

    def _remembering(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Record every later call of torch's `new_group`."""

        @functools.wraps(make)
        def new_group(*args: Any, **kwargs: Any) -> Any:
            self.making = "new_group"
            try:
                group = self.loops.watching(lambda: make(*args, **kwargs))
            finally:
                self.making = None
            self.made.append((args, kwargs, group))
            return group

        new_group.__tpcourse__ = make  # type: ignore[attr-defined]
        return new_group

    def join(self, store: Any, rank: int, world_size: int) -> Any:
        """Join the world on `store`; returns its group."""
        kwargs = {"device_id": self.device} if self.backend == "nccl" else {}

        def world() -> Any:
            dist.init_process_group(
                self.backend, store=store, rank=rank, world_size=world_size, timeout=TIME_OUT, **kwargs
            )
            return dist.group.WORLD

        return self.loops.watching(world)

    def leave(self) -> None:
        """Abort every group: whoever waits in one is woken or left behind.

        Trap: on NCCL torch aborts one group after the other, and an idle one cannot free its memory while a kernel
        of another is stuck on the GPU. So all are aborted at once first. On gloo the last reference to a group waits
        for the calls that it has under way, and those may never end: such groups are kept.
        """
        if not dist.is_initialized():
            return
        if self.backend == "gloo":
            busy = ledger.busy_groups()
            self.loops.quiet(busy)
            self.left += busy
        if self.backend == "nccl":
            groups = list(distributed_c10d._world.pg_names)
            threads = [threading.Thread(target=_abort, args=(group,), daemon=True) for group in groups]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(ABORT_S)
        distributed_c10d._abort_process_group()

    def plan(self) -> list[tuple[tuple, dict]]:
        """The sub-groups made so far, as calls that any rank can repeat."""
        return [(args, kwargs) for args, kwargs, _ in self.made]

    def make_again(self, plan: list[tuple[tuple, dict]], values: dict[str, Any]) -> None:
        """Repeat the calls of `plan` in order, and put the new groups where the old ones stood in `values`."""
        old = [self.world, *(group for *_, group in self.made)]
        self.world, self.made = dist.group.WORLD, []
        for args, kwargs in plan:
            distributed_c10d.new_group(*args, **kwargs)
        new = [self.world, *(group for *_, group in self.made)]
        fresh = {id(before): after for before, after in zip(old, new) if before is not None}
        if fresh:  # none at the start
            Renewal(fresh).of(values)


def _abort(group: Any) -> None:
    with suppress(Exception):  # a group without a communicator has nothing to abort
        group.abort()


def _split(
    parent_pg: Any = None, split_ranks: list | None = None, timeout: Any = None, pg_options: Any = None,
    group_desc: str | None = None, **_: Any,
) -> Any:  # fmt: skip
    """torch's `split_group`, which meshes call on NCCL, by `new_group`: that one can be repeated after an abort."""
    ranks = dist.get_process_group_ranks(parent_pg or dist.group.WORLD)
    mine = None
    for part in split_ranks or []:
        members = [ranks[index] for index in part]
        group = distributed_c10d.new_group(members, timeout, group_desc=group_desc)
        mine = group if dist.get_rank() in members else mine
    return mine
