"""`start_ranks` and what it returns."""

from __future__ import annotations

import atexit
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from tpcourse.ranks import caps, magic, show
from tpcourse.ranks.asked import check_arguments, check_patience, choose
from tpcourse.ranks.cluster import Cluster, LocalCluster
from tpcourse.ranks.devices import Device, check_devices, check_found, check_free, explained
from tpcourse.ranks.errors import RankError, RanksError
from tpcourse.ranks.hosts import GivenCluster
from tpcourse.ranks.judge import judge
from tpcourse.ranks.recover import Meeting
from tpcourse.ranks.run import Run


class Ranks:
    """Running ranks: separate processes that this notebook drives with `%%px` and `ranks.run`."""

    def __init__(self, cluster: Cluster, backend: str, patience: float) -> None:
        self.cluster, self.backend, self.patience = cluster, backend, patience
        self.limit_s = math.inf  # of one run, also where nobody waits
        self.meeting = Meeting(cluster, backend)
        self.history: list[tuple[float, int]] = []  # when which cell began
        self.meeting.setup(self.meeting.everyone)
        self.meeting.join()

    def __len__(self) -> int:
        return len(self.cluster.ids)

    def __repr__(self) -> str:
        where = "on the CPU (gloo)" if self.backend == "gloo" else "on GPUs (NCCL)"
        return f"{len(self)} ranks {where}"

    @property
    def client(self) -> Any:
        """The ipyparallel client, for those who want it."""
        return self.cluster.client

    def run(self, function: Callable[..., Any], *args: Any, targets: Any = None, **kwargs: Any) -> list[Any]:
        """Call `function(*args, **kwargs)` on every rank; returns the values in rank order.

        A function defined in the notebook sees the names of the rank it runs on (`rank`, `world`, `device`, ...).
        Tensors come back on the CPU. What the ranks print is shown in rank order.

        Raises:
            RankError: it raised on a rank. RanksStuck: the ranks waited for each other.
        """
        replies = self._run(targets, None, "run_call", function, args, kwargs)
        return [replies[rank]["value"] for rank in sorted(replies)]

    def run_cell(self, source: str, number: int = 0, targets: Any = None, live: Any = None) -> None:
        """Run the text of a cell on ranks: what `%%px` does."""
        self._run(targets, live, "run_cell", source, number)

    def _run(self, targets: Any, live: Any, name: str, *args: Any) -> dict[int, dict[str, Any]]:
        """Run and watch; then show outputs, and raise what has to be raised."""
        if self not in running():
            raise RanksError("these ranks were stopped; start_ranks() starts new ones")
        if self.meeting.is_broken:
            self.meeting.again([])
        run = Run(self.cluster, self.targets(targets), self.patience, self.limit_s)
        self.history.append((run.moved, args[1] if name == "run_cell" else 0))
        error: BaseException | None = None
        try:
            run.start(name, *args)
            finished = run.watch(live or (lambda _: None))
            error = judge(self, run, finished)
        except KeyboardInterrupt:
            error = judge(self, run, finished=False, interrupted=True)
        except ConnectionError as lost:
            self.stop()
            error = RanksError(str(lost))
        show.show({rank: reply["items"] for rank, reply in run.replies.items() if reply.get("done")}, len(self))
        if error is not None:
            raise error
        return run.replies

    def targets(self, targets: Any) -> list[int]:
        """Rank numbers from `None` (all), a number, a list or text like "0,2" or "1-3"."""
        return magic.parse_targets(targets, len(self))

    def __getitem__(self, name: str) -> list[Any]:
        """The value of a variable on every rank, in rank order."""
        started = [self.cluster.call(rank, "pull", name) for rank in range(len(self))]
        with _told():
            return [value for (value,) in self.cluster.gather(started, 60.0)]

    def push(self, values: dict[str, Any]) -> None:
        """Set variables on every rank."""
        self.cluster.call_all("push", values)

    @contextmanager
    def patient(self, seconds: float) -> Iterator[Ranks]:
        """Another patience within a block."""
        before, self.patience = self.patience, check_patience(seconds)
        try:
            yield self
        finally:
            self.patience = before

    @contextmanager
    def within(self, seconds: float) -> Iterator[Ranks]:
        """A limit for each run of a block, also where no rank waits: RanksOutOfTime, and the ranks go on."""
        before, self.limit_s = self.limit_s, seconds
        try:
            yield self
        finally:
            self.limit_s = before

    def restart(self) -> Ranks:
        """New processes for all ranks: variables, groups and whatever a cell changed are gone."""
        self.history.clear()
        self.meeting.fresh()
        return self

    def stop(self) -> None:
        """End all ranks. The next `start_ranks()` starts new ones."""
        if self in running():
            running().remove(self)
        self.cluster.close()


def start_ranks(
    n: int | None = None,
    backend: str | None = None,
    patience: float = 20.0,
    cluster: Any = None,
    devices: Sequence[Device] | None = None,
) -> Ranks:
    """Start ranks, or return those that this notebook has running.

    With two or more GPUs: one rank a GPU, on NCCL. Otherwise four ranks on the CPU, on gloo. Then `%%px` runs a
    cell on all of them, where `rank`, `world_size`, `device`, `world`, `torch` and `dist` exist.

    Args:
        n: how many ranks. backend: "nccl" or "gloo". patience: seconds without progress after which ranks that wait
        in a collective are reported and freed. cluster: an ipyparallel Cluster, a connection file or a profile's name;
        its engines, on one host or several, become the ranks, ordered by host. By default ranks are started here.
        devices: GPUs for the ranks, one each: numbers among the visible ones (CUDA_VISIBLE_DEVICES), or identifiers
        such as "GPU-4f3a".

    Raises:
        ValueError: more ranks than GPUs, an unknown backend or device, or ranks already running with other arguments.
        RuntimeError: a GPU is full or taken, or a person's ranks would be more than this machine allows.
    """
    check_arguments(n, backend, patience)
    backend = _with_devices(devices, n, backend, cluster)
    if running():
        return _same(running()[0], n, backend, patience, cluster, devices)
    magic.register(running)
    ranks = _start(n, backend or os.environ.get("TPCOURSE_BACKEND"), patience, cluster, devices)
    running().append(ranks)
    atexit.register(_stop_quietly, ranks)
    return ranks


@cache
def running() -> list[Ranks]:
    """The ranks of this process: none or one."""
    return []


def _with_devices(devices: Sequence[Device] | None, n: int | None, backend: str | None, cluster: Any) -> str | None:
    """The backend that picked devices ask for; a ValueError for arguments that contradict them."""
    if devices is None:
        return backend
    check_devices(devices)
    if cluster is not None:
        raise ValueError("devices= picks GPUs of this machine; on the hosts of a cluster set CUDA_VISIBLE_DEVICES")
    if backend == "gloo":
        raise ValueError(f"devices={list(devices)!r}: ranks on gloo use the CPU; leave devices or backend away")
    if n not in (None, len(devices)):
        raise ValueError(f"n={n} and {len(devices)} devices: each rank has a GPU of its own; leave n away")
    return "nccl"


def _start(
    n: int | None, backend: str | None, patience: float, given: Any, devices: Sequence[Device] | None = None
) -> Ranks:
    cluster: GivenCluster | LocalCluster = LocalCluster(devices) if given is None else GivenCluster(given)
    try:
        if isinstance(cluster, GivenCluster):
            count = cluster.start(n)
            backend = choose(count, backend, count if cluster.has_gpu_per_rank() else 0)[1]
        else:
            count, backend = _start_here(cluster, n, backend, devices)
        return Ranks(cluster, backend, patience)
    except BaseException as error:
        cluster.close()
        if words := explained(error):
            raise RanksError(words) from None
        raise


def _start_here(
    cluster: LocalCluster, n: int | None, backend: str | None, devices: Sequence[Device] | None
) -> tuple[int, str]:
    """Start ranks on this machine: as many as asked for, as its GPUs and as its owner allow."""
    num_gpus = cluster.num_gpus()
    check_found(devices, num_gpus)
    count, backend = choose(n, backend, num_gpus)
    count = caps.within(n, count, cluster.session.folder)
    if backend == "nccl":
        check_free(cluster.session.place["env"], count)
    cluster.start(count)
    return count, backend


def _same(
    ranks: Ranks, n: int | None, backend: str | None, patience: float, given: Any, devices: Sequence[Device] | None
) -> Ranks:
    """The running ranks, if they are what was asked for."""
    picked = devices is not None and list(devices) != ranks.cluster.devices
    elsewhere = given is not None and given != ranks.cluster.given
    if n not in (None, len(ranks)) or backend not in (None, ranks.backend) or picked or elsewhere:
        place = "that cluster" if elsewhere else f"devices {devices}" if picked else backend or ranks.backend
        raise ValueError(
            f"this notebook already has {ranks}; call ranks.stop() first to start {n or len(ranks)} ranks on {place}"
        )
    ranks.patience = float(patience)
    return ranks


def _stop_quietly(ranks: Ranks) -> None:
    with suppress(Exception):
        ranks.stop()


@contextmanager
def _told() -> Iterator[None]:
    """Turn ipyparallel's remote errors into one line of ours."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "ename") and hasattr(error, "evalue"):
            raise RankError(f"{error.ename}: {error.evalue}") from None
        raise
