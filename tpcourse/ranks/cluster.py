"""Engines in rank order, and those that the server forks on this machine; `hosts` has those that were given."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tpcourse.ranks.calls import call
from tpcourse.ranks.devices import narrowed
from tpcourse.ranks.errors import RanksError
from tpcourse.ranks.spawn import Session

START_TIMEOUT_S = 90.0


class Cluster:
    """Engines in rank order, and how to call them."""

    given: Any = None  # what the caller passed, if somebody else started the engines

    def __init__(self, client: Any) -> None:
        self.client = client
        self.ids: list[int] = []
        self.pids: list[int] = []
        self.hosts: list[str] = []
        self.devices: list[Any] | None = None  # GPUs that the caller picked

    def call(self, rank: int, name: str, *args: Any) -> Any:
        """Start `tpcourse.engine.NAME(*args)` on a rank; returns ipyparallel's AsyncResult."""
        return self._apply(self.ids[rank], name, *args)

    def _apply(self, number: int, name: str, *args: Any) -> Any:
        return self.client.direct_view(number).apply_async(call, name, *args)

    def collect(self, result: Any) -> Any:
        """The value of a finished call, forgotten by the client."""
        try:
            return result.get(0)
        finally:
            with suppress(Exception):
                self.client.purge_local_results(result)

    def call_all(self, name: str, *args: Any, timeout_s: float = START_TIMEOUT_S) -> list[Any]:
        """Call on every rank and wait."""
        started = [self.call(rank, name, *args) for rank in range(len(self.ids))]
        return self.gather(started, timeout_s)

    def gather(self, started: list[Any], timeout_s: float) -> list[Any]:
        end = time.monotonic() + timeout_s
        for result in started:
            result.wait(max(0.0, end - time.monotonic()))
            if not result.ready():
                raise TimeoutError(f"a rank did not answer within {timeout_s:.0f} s")
        return [self.collect(result) for result in started]

    def wait_for(self, count: int, known: set[int]) -> list[int]:
        """Wait until `count` engines that are not in `known` have registered; returns their ids."""
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            fresh = [number for number in self.client.ids if number not in known]
            if len(fresh) >= count:
                return fresh[:count]
            self.check()
            time.sleep(0.005)
        raise TimeoutError(f"{count} ranks did not start within {START_TIMEOUT_S:.0f} s")

    def add(self, ids: list[int]) -> list[dict[str, Any]]:
        """Ask new engines who they are."""
        return self.gather([self._apply(number, "hello") for number in ids], 60)

    def check(self) -> None:
        """Raise if the cluster cannot start."""

    def dead(self) -> dict[int, str]:
        """Ranks whose process ended, and how."""
        alive = set(self.client.ids)
        return {rank: "its engine left the cluster" for rank, number in enumerate(self.ids) if number not in alive}

    def last_words(self, rank: int) -> str | None:
        """What a rank's C++ code said when it ended the process, if it said anything."""
        return None

    def kill(self, ranks: list[int]) -> None:
        """End the processes of ranks."""
        raise RanksError("ranks of a cluster that was passed in are ended by whoever started it")

    def replace(self, ranks: list[int]) -> None:
        """Put new engines in the place of dead ranks."""
        raise RanksError(self.lost(ranks) or f"ranks {ranks} are gone")

    def lost(self, ranks: list[int]) -> str | None:
        """What to say when ranks are gone for good; None where new ones can take their place."""
        return None

    def board(self, rank: int) -> str | None:
        """The file in which a rank notes its calls, where this process can read it."""
        return None

    def store(self, generation: int) -> Any:
        """Where the ranks meet: a private file, or host and port."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the engines."""
        with suppress(Exception):
            self.client.close()


class LocalCluster(Cluster):
    """Engines of this machine, forked from a server that has imported torch; sockets and stores are private files."""

    def __init__(self, devices: Any = None) -> None:
        self.session = Session(narrowed(devices, os.environ))
        self.session.fork("controller")
        self.session.request(do="gpus", place=self.session.place)  # answered when torch is imported
        super().__init__(_client(self.session.folder))
        self.devices = None if devices is None else list(devices)

    def num_gpus(self) -> int:
        return self.session.answer(60)["gpus"]

    def start(self, count: int) -> None:
        """Fork `count` engines; rank r is the r-th that registers."""
        self.session.fork("engines", count)
        self.ids = self.wait_for(count, set())
        hellos = self.add(self.ids)
        self.pids, self.hosts = [hello["pid"] for hello in hellos], [hello["host"] for hello in hellos]

    def check(self) -> None:
        if died := self.session.look():
            how = next(iter(died.values()))
            raise RuntimeError(f"a rank's process ended while starting ({how}); its log: {self._log()}")

    def _log(self) -> str:
        logs = [path.read_text(errors="replace") for path in self.session.folder.glob("*.log")]
        lines = "\n".join(logs).strip().splitlines()
        return lines[-1] if lines else "empty"

    def dead(self) -> dict[int, str]:
        died = self.session.look()
        return {rank: died[pid] for rank, pid in enumerate(self.pids) if pid in died}

    def last_words(self, rank: int) -> str | None:
        path = self.session.folder / f"{self.pids[rank]}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return next((line.split("what():", 1)[1].strip() for line in reversed(lines) if "what():" in line), None)

    def kill(self, ranks: list[int]) -> None:
        self.session.kill([self.pids[rank] for rank in ranks])
        end = time.monotonic() + 5
        while time.monotonic() < end and not set(ranks) <= set(self.dead()):
            time.sleep(0.01)

    def replace(self, ranks: list[int]) -> None:
        known = set(self.client.ids) | set(self.ids)
        for rank in ranks:
            self.session.died.pop(self.pids[rank], None)
        self.session.fork("engines", len(ranks))
        fresh = self.wait_for(len(ranks), known)
        for rank, number, hello in zip(ranks, fresh, self.add(fresh)):
            self.ids[rank], self.pids[rank], self.hosts[rank] = number, hello["pid"], hello["host"]
            Path(self.board(rank)).unlink(missing_ok=True)

    def board(self, rank: int) -> str:
        return str(self.session.folder / f"board-{rank}")

    def store(self, generation: int) -> str:
        path = self.session.folder / f"store-{generation}"
        path.touch(mode=0o600)
        return str(path)

    def close(self) -> None:
        super().close()
        self.session.close()


def _client(folder: Path) -> Any:
    """Connect to the controller of `folder` as soon as it has written its file."""
    import ipyparallel

    path = folder / "security" / "ipcontroller-client.json"
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        with suppress(OSError, ValueError):
            json.loads(path.read_text())
            return ipyparallel.Client(connection_info=str(path), timeout=30)
        time.sleep(0.005)
    raise TimeoutError(f"the controller of the ranks did not start within {START_TIMEOUT_S:.0f} s")
