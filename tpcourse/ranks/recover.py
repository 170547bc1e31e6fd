"""After a hang, a death or an interrupt: free the ranks, replace the dead, and let all meet again."""

from __future__ import annotations

import time
from typing import Any

from tpcourse.ranks.errors import RanksError

LEAVE_S = 8.0  # a rank that cannot leave its groups within this time is killed
JOIN_S = 20.0


class Meeting:
    """Lets the ranks of a cluster meet in a world, as often as needed."""

    def __init__(self, cluster: Any, backend: str) -> None:
        self.cluster, self.backend = cluster, backend
        self.generation = 0
        self.is_broken = False  # a repair was interrupted

    @property
    def everyone(self) -> list[int]:
        return list(range(len(self.cluster.ids)))

    def setup(self, ranks: list[int]) -> None:
        """Tell engines which rank they are."""
        hosts = self.cluster.hosts
        self._on(ranks, 60.0, lambda rank: (
            "setup", rank, len(hosts), self.backend, hosts[:rank].count(hosts[rank]), self.cluster.board(rank),
            hosts.count(hosts[rank]),
        ))  # fmt: skip

    def join(self, plan: list | None = None) -> None:
        """Let every rank join a new world and make the sub-groups of `plan`."""
        self.generation += 1
        store = self.cluster.store(self.generation)
        self._on(self.everyone, JOIN_S, lambda rank: ("join", store, plan or [], self.generation))

    def again(self, dead: list[int]) -> list[int]:
        """Free all ranks and meet again; returns the ranks that had to be replaced (their variables are gone).

        Raises: RanksError if some are gone for good, as those of a host that does not answer.
        """
        self.is_broken = True
        gone = set(dead) | self._leave([rank for rank in self.everyone if rank not in dead])
        if gone and (words := self.cluster.lost(sorted(gone))):
            raise RanksError(words)
        plan = self._plan([rank for rank in self.everyone if rank not in gone])
        self._replace(sorted(gone))
        try:
            self.join(plan)
        except Exception:
            if words := self.cluster.lost(self.everyone):
                raise RanksError(words) from None
            self.fresh()
            return self.everyone
        self.is_broken = False
        return sorted(gone)

    def fresh(self) -> None:
        """New processes for all ranks."""
        self._replace(self.everyone)
        self.join()
        self.is_broken = False

    def _replace(self, ranks: list[int]) -> None:
        if ranks:
            self.cluster.kill(ranks)
            self.cluster.replace(ranks)
            self.setup(ranks)

    def _leave(self, ranks: list[int]) -> set[int]:
        """Ask ranks to leave cell and groups; returns those that did not answer."""
        started = {rank: self.cluster.call(rank, "leave") for rank in ranks}
        end = time.monotonic() + LEAVE_S
        deaf = set()
        for rank, result in started.items():
            result.wait(max(0.0, end - time.monotonic()))
            try:
                if not result.ready():
                    raise TimeoutError
                self.cluster.collect(result)
            except Exception:
                deaf.add(rank)
        return deaf

    def _plan(self, ranks: list[int]) -> list:
        """The sub-groups that all these ranks made: the longest common beginning of their lists."""
        plans = self._on(ranks, 10.0, lambda rank: ("plan",)) if ranks else []
        common = []
        for calls in zip(*plans):
            if any(call != calls[0] for call in calls):
                break
            common.append(calls[0])
        return common

    def _on(self, ranks: list[int], timeout_s: float, call: Any) -> list[Any]:
        return self.cluster.gather([self.cluster.call(rank, *call(rank)) for rank in ranks], timeout_s)
