"""What the ledger keeps for each process group: its axis, its ranks, and its counts."""

from __future__ import annotations

import itertools
import weakref
import zlib
from collections.abc import Callable
from typing import Any

Key = tuple[Any, ...]


class Group:
    """One process group as this rank sees it."""

    def __init__(self, pg: Any, ranks: tuple[int, ...], axis: str, copy: int) -> None:
        self.ref = weakref.ref(pg)
        self.ranks, self.axis, self.copy = ranks, axis, copy
        self.size: int = len(ranks)
        self.index: int = pg.rank()
        self.rank = ranks[self.index]
        self.next_collective = itertools.count(1).__next__
        self._next_message: dict[Key, Callable[[], int]] = {}

    def next_message(self, src: int | None, dst: int) -> int:
        """The number of the next message src -> dst; `src` None counts receives from any rank."""
        if (src, dst) not in self._next_message:
            self._next_message[src, dst] = itertools.count(1).__next__
        return self._next_message[src, dst]()

    def global_rank(self, index: int | None) -> int | None:
        """The global rank of a rank of this group; torch's operators name peers and roots by the latter."""
        return None if index is None or not 0 <= index < self.size else self.ranks[index]


class Groups:
    """Group by process group, and the rolling hash of the calls made on each."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._unbox = dist.ProcessGroup.unbox
        self._by_id: dict[int, Group] = {}
        self._prints: dict[Key, tuple[int, int]] = {}

    def of(self, boxed: Any) -> Group:
        """The Group of an operator's process group argument."""
        pg = self._unbox(boxed)
        group = self._by_id.get(id(pg))
        if group is None or group.ref() is not pg:
            group = self._by_id[id(pg)] = _describe(pg)
        return group

    def reset(self) -> None:
        """Count from 1 again, with new groups."""
        self._by_id.clear()
        self._prints.clear()

    def mark(self, key: Key, word: str) -> None:
        """Add one call to the fingerprint of its group or direction."""
        count, value = self._prints.get(key, (0, 0))
        self._prints[key] = (count + 1, zlib.crc32(word.encode(), value))

    def fingerprints(self) -> dict[Key, tuple[int, int]]:
        """Key -> (calls, hash); see `tpcourse.ledger.fingerprints`."""
        return dict(self._prints)

    def reset_fingerprints(self) -> None:
        """Begin new fingerprints; the sequence numbers go on."""
        self._prints.clear()


def _describe(pg: Any) -> Group:
    import torch.distributed as dist

    ranks = tuple(dist.get_process_group_ranks(pg))
    twins = [other for other in _all_groups() if _same(other, pg.group_desc, ranks)]
    copy = next((number for number, other in enumerate(twins, 1) if other is pg), 1)
    return Group(pg, ranks, axis_of(pg.group_desc, ranks), copy)


def _same(pg: Any, description: str, ranks: tuple[int, ...]) -> bool:
    import torch.distributed as dist

    return pg.group_desc == description and tuple(dist.get_process_group_ranks(pg)) == ranks


def _all_groups() -> list[Any]:
    """All process groups in the order in which they were made, which is the same on all ranks."""
    from torch.distributed import distributed_c10d

    world = getattr(distributed_c10d, "_world", None)
    return [pg for pg in getattr(world, "pg_map", {}) if hasattr(pg, "group_desc")]


def axis_of(description: str, ranks: tuple[int, ...]) -> str:
    """The axis that torch's description of a group stands for: "mesh_tp" -> "tp", "default_pg" -> "world"."""
    if description in ("default_pg", "mesh_default"):
        return "world"
    if not description or description == "undefined" or ":" in description:
        return "group " + ",".join(map(str, ranks))
    return description.removeprefix("mesh_")
