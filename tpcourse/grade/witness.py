"""What a rank's calls were by torch's own C++ code: its count of every call, and its flight recorder's sizes.

The ledger of a check has to say the same. What an answer does with a group that it makes and destroys, with a group's
backend behind the ledger's back, or to the ledger's own list, is here all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ENVIRONMENT = dict.fromkeys(("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"), "20000")
"""Set before torch is imported: without it some builds record nothing."""
WIDTHS = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2, "int32": 4, "int64": 8, "bool": 1, "uint8": 1}
PIECES = ("all_gather", "gather", "scatter")  # the ledger has the piece of these, the recorder the whole


@dataclass(frozen=True)
class Calls:
    """Of one rank, so far: calls that its groups counted, groups that were made and not by the check, and what was
    recorded (number, operation, bytes of the larger side).
    """

    counted: int
    groups: int
    recorded: list[tuple[int, str, int]]


def calls_of(ranks: Any) -> list[Calls]:
    """Those of every rank."""
    return [Calls(*found) for found in ranks.run(look)]


def hidden(before: Calls, after: Calls, events: Iterable[Any]) -> str:
    """What a rank did between two looks that these events of its ledger do not say; "" if nothing."""
    noted = list(events)
    last = max((number for number, _, _ in before.recorded), default=-1)
    recorded = [(op, size) for number, op, size in after.recorded if number > last]
    collectives = [event for event in noted if event.op not in ("send", "recv")]
    made, size = after.counted - before.counted, sum(size for _, size in recorded)
    if after.groups > before.groups:
        return "made groups of its own"
    if made > len(noted) or len(recorded) > len(collectives):
        return f"made {max(made, len(recorded))} calls, noted {len(noted)}"
    if size > (known := sum(map(whole_bytes, collectives))):
        return f"called with {size:,} bytes, noted {known:,}"
    return ""


def whole_bytes(event: Any) -> int:
    """Bytes of the larger of a collective's two sides."""
    return event.numel * WIDTHS.get(event.dtype, 8) * (len(event.group) if event.op in PIECES else 1)


def look() -> tuple[int, int, list[tuple[int, str, int]]]:
    """Runs in the rank: the fields of `Calls`."""
    import pickle

    import torch
    import torch.distributed as dist

    from tpcourse.check import rank_side

    widths = {"Float": 4, "Double": 8, "BFloat16": 2, "Half": 2, "Int": 4, "Long": 8, "Bool": 1, "Byte": 1, "Char": 1}
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    found = []
    for entry in pickle.loads(dump(includeStackTraces=False)).get("entries", []) if dump else []:
        sides = [0, 0]
        for side, name in enumerate(("input", "output")):
            for size, dtype in zip(entry[f"{name}_sizes"], entry[f"{name}_dtypes"]):
                sides[side] += widths.get(dtype, 8) * torch.Size(size).numel()
        found.append((entry["record_id"], entry["profiling_name"].partition(":")[2], max(sides)))
    world, own = dist.distributed_c10d._world, len(rank_side.known_groups())
    counted = sum(group._get_sequence_number_for_group() for group in world.pg_map)
    return counted, world.group_count - own, found
