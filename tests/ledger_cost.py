"""What the ledger adds to a collective, in microseconds; run it: `python tests/ledger_cost.py`.

One rank, all_reduce of four floats, on gloo and on torch's fake backend (which does nothing at all). With and
without the ledger alternate in one process; the median and the least of 100 rounds are printed, in CPU time
of the calling thread, so that other programs on the machine count little.
"""

from __future__ import annotations

import tempfile
import time
from statistics import median

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tpcourse import ledger as lg


def measure(rounds: int = 100, calls: int = 40) -> dict[str, list[float]]:
    """Microseconds of a call, by variant, one value a round."""
    x, found = torch.ones(4), {"without": [], "ledger": [], "ledger and board": []}
    with tempfile.NamedTemporaryFile() as board:
        for _ in range(rounds):
            for variant, values in found.items():
                if variant != "without":
                    lg.install(board.name if variant.endswith("board") else None)
                for _ in range(10):
                    dist.all_reduce(x)
                begin_s = time.thread_time()
                for _ in range(calls):
                    dist.all_reduce(x)
                values.append((time.thread_time() - begin_s) / calls * 1e6)
                lg.uninstall()
    return found


def main() -> None:
    """Measure on both backends and print."""
    torch.set_num_threads(1)
    for backend in ("fake", "gloo"):
        with tempfile.TemporaryDirectory() as folder:
            store = FakeStore() if backend == "fake" else dist.FileStore(f"{folder}/meet", 1)
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
            found = measure()
            dist.destroy_process_group()
        for variant, values in found.items():
            added = median(values) - median(found["without"]), min(values) - min(found["without"])
            print(f"{backend}  {variant:17} median {median(values):6.1f} us  least {min(values):6.1f} us"
                  f"   added {added[0]:5.1f} and {added[1]:5.1f} us")


if __name__ == "__main__":
    main()
