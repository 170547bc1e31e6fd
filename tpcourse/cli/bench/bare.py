"""Ranks with nothing of ours in them but what is measured: no ledger, no watcher, no notebook.

The ledger keeps what a call writes until the call has ended. On a GPU the CPU runs ahead, so memory that a program
has let go would be held a while longer: nothing in lessons, but too much where the peak is the figure.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from tpcourse.cli.bench.calls import here

TIMEOUT = timedelta(minutes=3)
"""How long a call may wait for the others before all ranks end."""


def on_bare_ranks(module: str, name: str, *args: Any) -> Any:
    """`tpcourse.cli.bench.MODULE.NAME(*args)` on fresh ranks; the first rank's result, which must be plain data.

    One NCCL rank a GPU if there are two or more, else four gloo ranks on the CPU. All end when one fails.
    """
    import torch
    from torch.multiprocessing import spawn

    from tpcourse.ranks.api import choose

    p, backend = choose(None, os.environ.get("TPCOURSE_BACKEND"), torch.cuda.device_count())
    with tempfile.TemporaryDirectory(prefix="tpcourse-bench-") as folder:
        spawn(_rank, (p, backend, folder, module, name, args), nprocs=p)
        return json.loads(Path(folder, "result.json").read_text("utf-8"))


def _rank(rank: int, p: int, backend: str, folder: str, module: str, name: str, args: tuple[Any, ...]) -> None:
    """A rank's whole life."""
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")  # as the course's ranks have it
    device = torch.device("cuda", rank) if backend == "nccl" else None
    if device is not None:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // p))
    meet = f"file://{folder}/meet"
    dist.init_process_group(backend, init_method=meet, timeout=TIMEOUT, world_size=p, rank=rank, device_id=device)
    result = here(module, name, *args)
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result), "utf-8")
    dist.barrier()
    dist.destroy_process_group()
