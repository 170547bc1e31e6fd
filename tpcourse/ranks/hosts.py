"""Engines that somebody else started, on one host or several, by any of ipyparallel's launchers."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import Any

from tpcourse.ranks.cluster import Cluster
from tpcourse.ranks.errors import RanksError

HELLO_S = 120.0  # an engine imports torch when it is first asked
SETTLE_S = 15.0  # an engine that comes so long after the last one is not waited for
LEAVE_S = 5.0


class GivenCluster(Cluster):
    """Ranks ordered by host; they meet on a store of rank 0's host. Whoever started the engines ends them."""

    def __init__(self, cluster: Any) -> None:
        self.given = cluster
        self.gpus: list[int] = []
        self.addresses: list[list[str]] = []
        self.expected = getattr(cluster, "n", None)
        self.unreachable: set[int] = set()
        super().__init__(_client(cluster))

    def start(self, count: int | None) -> int:
        """Take `count` engines (all, if None), in the order of their hosts' names; returns how many."""
        self._settle(count or self.expected or 1)
        hellos = self._hellos(list(self.client.ids))
        names = _host_names(hellos)
        order = sorted(hellos, key=lambda number: (_natural(names[number]), number))
        if len(order) < (count or 1):
            raise RanksError(f"{count} ranks were asked for, and {len(order)} engines of the cluster answer")
        self.ids = order[:count]
        mine = [hellos[number] for number in self.ids]
        self.hosts = [names[number] for number in self.ids]
        self.pids, self.gpus = [hello["pid"] for hello in mine], [hello["gpus"] for hello in mine]
        self.addresses = [hello["addresses"] for hello in mine]
        return len(self.ids)

    def _settle(self, wanted: int) -> None:
        """Wait for `wanted` engines, or until no more have come for some time: some may be gone for good."""
        self.wait_for(1, set())
        known, since = 1, time.monotonic()
        while len(self.client.ids) < wanted and time.monotonic() - since < SETTLE_S:
            time.sleep(0.05)
            if len(self.client.ids) != known:
                known, since = len(self.client.ids), time.monotonic()

    def _hellos(self, ids: list[int]) -> dict[int, dict[str, Any]]:
        """Who the engines are; those that do not answer are left out. An engine without the course is an error."""
        started = {number: self._apply(number, "hello") for number in ids}
        found, end = {}, time.monotonic() + HELLO_S
        for number, result in started.items():
            while not result.ready() and number in self.client.ids and time.monotonic() < end:
                result.wait(0.2)
            if not result.ready():
                continue
            try:
                found[number] = self.collect(result)
            except Exception as error:
                if getattr(error, "ename", None) != "EngineError":  # which says that it died meanwhile
                    raise RanksError(_cannot(number, error)) from None
        return found

    def has_gpu_per_rank(self) -> bool:
        """Whether each host has a GPU for each of its ranks."""
        return all(self.hosts.count(host) <= gpus for host, gpus in zip(self.hosts, self.gpus))

    def store(self, generation: int) -> tuple[str, int]:
        """Open a store on rank 0's host; returns an address of it that every host reaches, and its port."""
        several = len(set(self.hosts)) > 1
        (port,) = self.gather([self.call(0, "open_store", len(self.ids))], 30)
        if not several:
            return "127.0.0.1", port
        candidates = self.addresses[0]
        others = [self.hosts.index(host) for host in dict.fromkeys(self.hosts) if host != self.hosts[0]]
        seen = self.gather([self.call(rank, "reached", candidates, port) for rank in others], 30)
        for address in candidates:
            if all(address in one for one in seen):
                return address, port
        deaf = ", ".join(self.hosts[rank] for rank, one in zip(others, seen) if not one)
        raise RanksError(
            f"{deaf or 'not every host'} cannot connect to {self.hosts[0]} (rank 0) on any one of its addresses, "
            f"{', '.join(candidates) or 'of which it has none'}: is a firewall between them?"
        )

    def lost(self, ranks: list[int]) -> str:
        """What to say when ranks are gone for good, and what to do."""
        self.unreachable |= set(ranks)
        hosts = ", ".join(dict.fromkeys(self.hosts[rank] for rank in ranks))
        return (
            f"Ranks that ran on {hosts} are gone, and whoever started them has to start them again. The notebook goes "
            "on: start_ranks(cluster=...) takes the engines that answer."
        )

    def close(self) -> None:
        """Let the engines go as they came: out of every group, free for the next `start_ranks`."""
        with suppress(Exception):
            gone = self.unreachable | set(self.dead())
            started = [self.call(rank, "leave") for rank in range(len(self.ids)) if rank not in gone]
            end = time.monotonic() + LEAVE_S
            for result in started:
                result.wait(max(0.0, end - time.monotonic()))
        super().close()


def _client(cluster: Any) -> Any:
    """A client of a Cluster, a Client, a connection file or a profile's name.

    Raises: RanksError for a Cluster that was not started, or a name that is neither file nor running profile.
    """
    import ipyparallel

    if isinstance(cluster, ipyparallel.Client):
        return cluster
    if isinstance(cluster, ipyparallel.Cluster):
        if cluster.controller is None:
            raise RanksError(f"{cluster} has not been started: cluster.start_cluster_sync(n=4), then start_ranks")
        return cluster.connect_client_sync()
    name = os.fspath(cluster)
    try:
        if os.path.isfile(name) or name.endswith(".json"):
            return ipyparallel.Client(connection_info=name)
        return ipyparallel.Client(profile=name, timeout=2)
    except (OSError, TimeoutError) as error:
        raise RanksError(
            f"cluster={name!r} is neither a connection file nor a profile with a running controller ({error}). "
            f"ipcluster start --profile={name} starts one"
        ) from None


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts node2 before node10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _host_names(hellos: dict[int, dict[str, Any]]) -> dict[int, str]:
    """The host of each engine; hosts that have one name in common are told apart by their addresses."""
    machines: dict[str, set[tuple[str, ...]]] = {}
    for hello in hellos.values():
        machines.setdefault(hello["host"], set()).add(tuple(hello["addresses"]))
    return {
        number: hello["host"] if len(machines[hello["host"]]) == 1 else f"{hello['host']} ({hello['addresses'][0]})"
        for number, hello in hellos.items()
    }


def _cannot(number: int, error: Exception) -> str:
    name, text = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", str(error))
    way = ": the course and its packages must be installed where the engines run" if "NotFound" in name else ""
    return f"engine {number} of the cluster cannot be a rank ({name}: {text}){way}"
