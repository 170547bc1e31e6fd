"""Form `peer` of 2 ranks on one GPU, forward and backward, to be run under NVIDIA's compute-sanitizer.

    compute-sanitizer --tool racecheck --target-processes all --error-exitcode 9 python tests/overlap_sanitized.py

`racecheck` sees hazards in shared memory, within a kernel; `--tool memcheck` sees what is read or written out of
bounds. Neither sees the order of two streams: `test_overlap_gpu.py` and `test_overlap_one_gpu.py` do, by poisoned
memory.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn

P, CALLS = 2, 2
PATHS = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]


def main() -> None:
    """All ranks end, or all fail."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder,), nprocs=P)
    print(f"{P} ranks, {CALLS} calls of each case: all as one device")


def _rank(rank: int, folder: str) -> None:
    sys.path[:0] = PATHS
    import test_overlap_one_gpu as cases

    cases.here()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", world_size=P, rank=rank)
    shapes = random.Random(3)  # the same on all ranks
    for kind, options in CALLS * cases.EVERY:
        of_ranks = cases.drawn(shapes, kind, P)
        ours = cases.values(dist.group.WORLD, kind, *of_ranks[rank], **options)
        assert cases.is_near(ours, cases.one_device(kind, of_ranks, rank), cases.ROUGH), (kind, options)
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
