"""Form `peer` on 2 GPUs, forward and backward, small and without pytest: to be run under NVIDIA's compute-sanitizer.

    compute-sanitizer --tool racecheck --target-processes all --error-exitcode 9 python tests/overlap_sanitized.py

`racecheck` sees hazards in shared memory, within a kernel; `--tool memcheck` sees what is read or written out of
bounds. Neither sees the order of two streams: `test_overlap_gpu.py` does, by poisoned memory.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import spawn

P, CALLS = 2, 3
EVERY: list[tuple[str, dict[str, Any]]] = [
    ("gather", {}), ("gather", {"pieces": 2, "regather": True}), ("scatter", {}), ("scatter", {"pieces": 1}),
]  # fmt: skip


def main() -> None:
    """All ranks end, or all fail."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder,), nprocs=P)
    print(f"{P} ranks: {len(EVERY)} cases, {CALLS} calls each, all as serial")


def _rank(rank: int, folder: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/meet", world_size=P, rank=rank, device_id=device)
    for kind, options in EVERY:
        for _ in range(CALLS):
            ours, right = (_values(rank, kind, form, more) for form, more in (("peer", options), ("serial", {})))
            assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(ours, right, strict=True)), kind
    torch.cuda.synchronize()
    dist.destroy_process_group()


def _values(rank: int, kind: str, form: str, options: dict[str, Any]) -> list[torch.Tensor]:
    """y and the gradients of x and the weight."""
    from tpcourse.overlap import gather_product, product_scatter

    draw = torch.Generator("cuda").manual_seed(rank)
    tokens = {"gather": (32, 64), "scatter": (64, 32)}[kind]
    shapes = [1, tokens[0], 48], [40, 48], [1, tokens[1], 40]
    x, weight, dy = (torch.randn(*shape, device="cuda", generator=draw) for shape in shapes)
    x.requires_grad_(), weight.requires_grad_()
    kernel = {"gather": gather_product, "scatter": product_scatter}[kind]
    y = kernel(x, weight, tp=dist.group.WORLD, form=form, **options)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), dy)]


if __name__ == "__main__":
    main()
