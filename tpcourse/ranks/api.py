"""`start_ranks` and what it returns."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from tpcourse.ranks import magic, show
from tpcourse.ranks.cluster import Cluster, GivenCluster, LocalCluster
from tpcourse.ranks.errors import RankError, RanksError
from tpcourse.ranks.judge import judge
from tpcourse.ranks.recover import Meeting
from tpcourse.ranks.run import Run

CPU_RANKS = 4


class Ranks:
    """Running ranks: separate processes that this notebook drives with `%%px` and `ranks.run`."""

    def __init__(self, cluster: Cluster, backend: str, patience: float) -> None:
        self.cluster, self.backend, self.patience = cluster, backend, patience
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
        run = Run(self.cluster, self.targets(targets), self.patience)
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
    n: int | None = None, backend: str | None = None, patience: float = 20.0, cluster: Any = None
) -> Ranks:
    """Start ranks, or return those that this notebook has running.

    With two or more GPUs: one rank a GPU, on NCCL. Otherwise four ranks on the CPU, on gloo. Then `%%px` runs a
    cell on all of them, where `rank`, `world_size`, `device`, `world`, `torch` and `dist` exist.

    Args:
        n: how many ranks. backend: "nccl" or "gloo". patience: seconds without progress after which ranks that wait
        in a collective are reported and freed. cluster: an ipyparallel Cluster, Client or connection file, whose
        engines (on any hosts) become the ranks; by default they are started on this machine.

    Raises:
        ValueError: more ranks than GPUs, an unknown backend, or ranks already running with other arguments.
    """
    check_arguments(n, backend, patience)
    if running():
        return _same(running()[0], n, backend, patience)
    magic.register(running)
    ranks = _start(n, backend or os.environ.get("TPCOURSE_BACKEND"), patience, cluster)
    running().append(ranks)
    atexit.register(_stop_quietly, ranks)
    return ranks


@cache
def running() -> list[Ranks]:
    """The ranks of this process: none or one."""
    return []


def _start(n: int | None, backend: str | None, patience: float, given: Any) -> Ranks:
    cluster: GivenCluster | LocalCluster = LocalCluster() if given is None else GivenCluster(given)
    try:
        if isinstance(cluster, GivenCluster):
            count = cluster.start(n)
            backend = choose(count, backend, count if cluster.has_gpu_per_rank() else 0)[1]
        else:
            count, backend = choose(n, backend, cluster.num_gpus())
            cluster.start(count)
        return Ranks(cluster, backend, patience)
    except BaseException:
        cluster.close()
        raise


def choose(n: int | None, backend: str | None, num_gpus: int) -> tuple[int, str]:
    """How many ranks on which backend, or a sentence that says why not."""
    if backend == "gloo":
        return n or CPU_RANKS, "gloo"
    if backend == "nccl" or num_gpus >= 2:
        wanted = num_gpus if n is None else n
        if wanted > num_gpus or num_gpus == 0:
            ways = f"start_ranks({num_gpus}), or " if num_gpus else ""
            raise ValueError(
                f"{wanted or 2} ranks on NCCL need {wanted or 2} GPUs, one each, and there are {num_gpus}. Ways out: "
                f"{ways}start_ranks({n or CPU_RANKS}, backend='gloo') on the CPU"
            )
        return wanted, "nccl"
    return n or CPU_RANKS, "gloo"


def check_arguments(n: int | None, backend: str | None, patience: float) -> None:
    """Raise ValueError for what cannot be meant."""
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= 64):
        raise ValueError(f"n={n!r}: the number of ranks is a whole number from 1 to 64, for example start_ranks(4)")
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f"backend={backend!r}: 'nccl' (GPUs) or 'gloo' (CPU)")
    check_patience(patience)


def check_patience(seconds: float) -> float:
    """The seconds as a number, or a ValueError that quotes them."""
    if not isinstance(seconds, (int, float)) or not 0.5 <= seconds <= 600:
        raise ValueError(f"patience={seconds!r}: a number of seconds from 0.5 to 600, for example 20")
    return float(seconds)


def _same(ranks: Ranks, n: int | None, backend: str | None, patience: float) -> Ranks:
    """The running ranks, if they are what was asked for."""
    if n not in (None, len(ranks)) or backend not in (None, ranks.backend):
        raise ValueError(
            f"this notebook already has {ranks}; call ranks.stop() first to start {n or len(ranks)} ranks "
            f"on {backend or ranks.backend}"
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
