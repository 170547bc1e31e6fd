"""What lives in each rank. The notebook calls these functions through ipyparallel; a learner never does."""

from __future__ import annotations

import os
from typing import Any

from tpcourse.engine.rank import Rank, portable

__all__ = ["hello", "open_store", "setup", "join", "leave", "run_cell", "run_call", "wait", "interrupt", "events"]


def _rank() -> Rank:
    """The rank of this process; it hangs on the engine's shell, so that no module holds state."""
    from IPython import get_ipython

    return get_ipython().tpcourse_rank


def hello() -> dict[str, Any]:
    """Who is this engine: process, host and its addresses, GPUs."""
    import socket

    import torch

    from tpcourse.engine.hosts import addresses

    known = {"pid": os.getpid(), "host": socket.gethostname(), "addresses": addresses()}
    return {**known, "gpus": torch.cuda.device_count()}


def setup(
    rank: int, world_size: int, backend: str, device_index: int, board: str | None, ranks_here: int | None = None
) -> None:
    """Make this engine rank `rank`, one of `ranks_here` on its host; what it was before, it is no more."""
    from IPython import get_ipython

    shell = get_ipython()
    if (before := getattr(shell, "tpcourse_rank", None)) is not None:
        before.leave()
    shell.tpcourse_rank = Rank(shell, rank, world_size, backend, device_index, board, ranks_here or world_size)


def open_store(world_size: int) -> int:
    """Open a store on this host, on every address of it, for ranks on several hosts; the system picks the port."""
    import torch.distributed as dist

    rank = _rank()
    rank.mine["store"] = dist.TCPStore("127.0.0.1", 0, world_size, is_master=True, wait_for_workers=False)
    return rank.mine["store"].port


def reached(candidates: list[str], port: int) -> list[str]:
    """Those addresses of rank 0's host that this one reaches."""
    from tpcourse.engine import hosts

    return hosts.reached(candidates, port)


def join(store: str | tuple[str, int], plan: list, generation: int) -> None:
    """Join the world: `store` is the path of a private file, or an address of rank 0's host and a port."""
    import torch.distributed as dist

    from tpcourse.engine.hosts import talk_towards

    rank = _rank()
    if isinstance(store, str):
        opened: Any = dist.FileStore(store, rank.world_size)
    elif rank.rank == 0:
        opened = rank.mine.get("store")
    else:
        opened = dist.TCPStore(*store, rank.world_size, is_master=False)
    if not isinstance(store, str) and store[0] != "127.0.0.1":
        talk_towards(store[0])
    rank.join(opened, plan, generation)


def leave() -> None:
    """Leave cell and groups behind."""
    _rank().leave()


def plan() -> list:
    """The sub-groups that this rank made."""
    return _rank().groups.plan()


def run_cell(source: str, number: int, wait_s: float) -> dict[str, Any]:
    """Start a cell and wait a little for its end."""
    rank = _rank()
    rank.mine["source"] = source
    rank.start(lambda capture: rank.run_cell(source, number, capture))
    return wait(wait_s)


def run_call(function: Any, args: tuple, kwargs: dict, wait_s: float) -> dict[str, Any]:
    """Start a call and wait a little for its end."""
    rank = _rank()
    rank.mine["source"] = ""
    rank.start(lambda capture: rank.run_call(function, args, kwargs, capture))
    return wait(wait_s)


def wait(wait_s: float) -> dict[str, Any]:
    """Wait for the running job for at most `wait_s` seconds, and say where it is."""
    rank = _rank()
    if rank.job is not None:
        rank.job.done.wait(wait_s)
    return rank.reply(rank.mine.get("source", ""))


def interrupt() -> None:
    """Raise KeyboardInterrupt in the running job."""
    rank = _rank()
    if rank.job is not None and not rank.job.done.is_set():
        rank.worker.interrupt()


def events() -> list:
    """The latest calls of this rank, for a report."""
    from tpcourse import ledger

    return ledger.recent()


def pull(name: str) -> list[Any]:
    """The value of a learner's variable, ready to travel; in a list, as a bare dict would arrive sorted by its keys."""
    values = _rank().shell.user_ns
    if name not in values:
        raise KeyError(f"no variable named {name!r} on rank {_rank().rank}")
    return [portable(values[name])]


def push(values: dict[str, Any]) -> None:
    """Set learner's variables."""
    _rank().shell.user_ns.update(values)
