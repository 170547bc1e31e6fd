"""What was counted: plain data that travels from the ranks to the notebook, and says itself as a table."""

from __future__ import annotations

from dataclasses import dataclass, field

KINDS = ("parameter", "gradient", "master", "moment", "activation", "buffer", "other")


class Held(dict[str, int]):
    """Bytes held, by kind, in the order of `KINDS`, without the kinds that hold nothing.

    On a GPU `allocated` and `peak` are what torch's allocator says of it now and at most since it was reset;
    None on the CPU, where nobody keeps that count.
    """

    allocated: int | None = None
    peak: int | None = None

    @property
    def total(self) -> int:
        """Bytes of all kinds together."""
        return sum(self.values())

    def per(self, number: float) -> dict[str, float]:
        """Bytes of each kind divided by a number: of parameters, of tokens. Raises: ValueError if it is not
        positive.
        """
        if not number > 0:
            raise ValueError(f"bytes per {number}: give a number above 0")
        return {kind: size / number for kind, size in self.items()}

    def __repr__(self) -> str:
        rows = [(kind, self[kind]) for kind in KINDS if kind in self] + [("total", self.total)]
        if self.allocated is not None and self.peak is not None:
            rows += [("allocator", self.allocated), ("its peak", self.peak)]
        return "\n".join(f"{name:<10} {size:>14,} bytes" for name, size in rows)


@dataclass(frozen=True)
class Kept:
    """One storage that autograd keeps: its bytes, a tensor of it, and how often it was saved."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    times: int = 1
    is_parameter: bool = False

    def __str__(self) -> str:
        again = f"  saved {self.times} times" if self.times > 1 else ""
        return f"{self.bytes:>12,}  {self.dtype:<9} {list(self.shape)}{again}"


@dataclass
class Saved:
    """What autograd keeps for a backward, storage by storage, in the order in which they were saved first."""

    kept: list[Kept] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes kept because of this forward: every storage once, parameters left out."""
        return sum(kept.bytes for kept in self.kept if not kept.is_parameter)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of parameters that backward will read; they are there anyway."""
        return sum(kept.bytes for kept in self.kept if kept.is_parameter)

    def __repr__(self) -> str:
        rows = [str(kept) for kept in self.kept if not kept.is_parameter]
        return "\n".join([*rows, f"{self.bytes:>12,}  bytes in {len(rows)} storages"])


@dataclass
class Peak:
    """How many bytes the tensors held that a block made, after each of its operations; the most of it is
    `bytes`.

    `curve` begins with 0, before the first operation; `marks` has (index into the curve, name) of each named
    moment. On a GPU `allocator` is by how much torch's own count rose at most; it includes what an operation
    uses inside itself.
    """

    curve: list[int] = field(default_factory=lambda: [0])
    marks: list[tuple[int, str]] = field(default_factory=list)
    allocator: int | None = None

    def mark(self, name: str) -> None:
        """What comes from now on is `name`: the forward, the backward."""
        self.marks.append((len(self.curve) - 1, name))

    @property
    def bytes(self) -> int:
        """The most bytes held at one time."""
        return max(self.curve)

    @property
    def left(self) -> int:
        """The bytes still held at the end of the block."""
        return self.curve[-1]

    def __repr__(self) -> str:
        more = "" if self.allocator is None else f"; by the allocator {self.allocator:,}"
        return f"{self.bytes:,} bytes at the peak, {self.left:,} at the end{more}"
