"""One call that a rank made: the record that tables, checks, figures and hang reports all read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Event:
    """One collective or one point-to-point call of one rank.

    Shapes: `shape` is what this rank puts in, and what all ranks of a correct program agree on:
        all_reduce, broadcast, reduce, send, recv   the tensor
        all_gather, gather                          the piece this rank gives
        reduce_scatter, all_to_all                  the whole input
        scatter                                     the piece this rank gets
        barrier                                     () and no elements
        a coalesced call of several tensors         (elements in all,)
    Numbers: collectives of one group count 1, 2, 3, ...; each direction src -> dst of a group counts for
        itself. A receive from any rank has no peer until it ends; it then takes its direction's next number.
    Traffic: `bytes_sent` and `bytes_received` follow traffic.py. Only a point-to-point call says which bytes
        travelled; a collective says what the best algorithm would send.
    """

    rank: int                               # global
    seq: int
    op: str
    axis: str
    group: tuple[int, ...]                  # global ranks
    peer: int | None                        # global: destination, source or root
    shape: tuple[int, ...]
    dtype: str
    numel: int
    offset: int                             # elements from the start of the tensor's storage
    splits: tuple[int, ...] | None          # rows to each rank, of an uneven all_to_all
    reduction: str | None
    bytes_sent: int
    bytes_received: int
    is_async: bool
    begin_s: float                          # time.monotonic()
    end_s: float | None                     # None: not finished, or not known to be
    line: str
    function: str
    tag: int = 0                            # of a send or receive
    splits_received: tuple[int, ...] | None = None
    copy: int = 1                           # 2, 3, ...: a later group of the same name over the same ranks
    wait_begin_s: float | None = None       # when a wait for it began
    waited_s: float | None = None           # when that wait returned (on a GPU, earlier than end_s)

    @property
    def is_point_to_point(self) -> bool:
        """Whether this is a send or a receive."""
        return self.op in ("send", "recv")

    @property
    def label(self) -> str:
        """The axis, with the group's number where several groups have that name: "tp", "group 0,1 (2)"."""
        return self.axis if self.copy == 1 else f"{self.axis} ({self.copy})"

    @property
    def peer_text(self) -> str:
        """The other rank in words: "to 1", "from 0", "from any", "root 2" or "-"."""
        if self.op == "send":
            return f"to {self.peer}"
        if self.op == "recv":
            return "from any" if self.peer is None else f"from {self.peer}"
        return "-" if self.peer is None else f"root {self.peer}"
