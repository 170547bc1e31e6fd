"""What each rank runs for `tpcourse bench profile`: rounds of visits, in each of which a mode trains from nothing.

All modes start from the same weights and see the same batches. Nothing else of a mode is there while another trains,
so that each has its own peak. A step's time has no gradient norm in it: that is read behind the clock, while the
gradients are still there.
"""

from __future__ import annotations

import gc
import random
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.block import GPT, GPTConfig, finish_gradients, gradient_norm
from tpcourse.cli.bench.overlap_ways import tried
from tpcourse.cli.bench.ranks_here import let_go, progress_here
from tpcourse.cli.bench.tensor_models import _now, reset_peak
from tpcourse.ranks.timing import device_here, slowest
from tpcourse.train import batch, source_tokens
from tpcourse.wire.torch_calls import all_gather_single, reduce_scatter_single

SPLIT: dict[str, Any] = {"sequence_parallel": True, "regather": True}
MODES: dict[str, dict[str, Any]] = {
    "one device": {"tp": None},
    "TP": {},
    "TP + SP": SPLIT,
    "TP + SP + overlap": {**SPLIT, "overlap": "auto"},
}
SMALL: dict[str, Any] = {"D": 512, "H": 8, "F": 1024, "L": 4, "T": 256}
MIDDLE: dict[str, Any] = {"D": 512, "H": 8, "F": 2048, "L": 12, "T": 1024}
LARGE: dict[str, Any] = {"D": 4096, "H": 32, "F": 14336, "L": 2, "T": 4096}
ON_GPU = ((SMALL, 4, 3), (MIDDLE, 8, 1), (LARGE, 2, 1))
"""Sizes, sequences of a batch, and visits a round: short steps are the launching CPU's, whose time varies."""
ON_CPU = (({"D": 24, "H": 4, "F": 48, "L": 2, "T": 16}, 2, 1),)
STYLE: dict[str, Any] = {"V": 256, "mlp": "gelu", "norm": "layer", "bias": True, "rotary": False}
WARM_UP, STEPS, ROUNDS = 5, 25, 3
EXACT_STEPS = 3  # in float32, whose losses and norms must agree to many digits
LEARNING_RATE = 1e-4
Visit = dict[str, list[float]]


def measure_here(num_rounds: int | None = None) -> dict[str, Any]:
    """Runs in the rank: by size and mode the losses and gradient norms of each step, milliseconds and peaks."""
    device = device_here()
    on_gpu = device.type == "cuda"
    warm_up, num_steps, usual = (WARM_UP, STEPS, ROUNDS) if on_gpu else (1, 4, 1)
    _meet(device)
    gc.freeze()  # what is here now stays, so that letting go of a visit is quick
    num_rounds = num_rounds or usual
    sizes = [
        _size(size, number, warm_up, num_steps, num_rounds * visits)
        for size, number, visits in (ON_GPU if on_gpu else ON_CPU)
    ]
    gc.unfreeze()
    return {
        "backend": dist.get_backend(),
        "p": dist.get_world_size(),
        "dtype": "bfloat16" if on_gpu else "float32",
        "sizes": sizes,
    }


def _size(sizes: dict[str, Any], num_sequences: int, warm_up: int, num_steps: int, num_rounds: int) -> dict[str, Any]:
    config, device, order = GPTConfig(**STYLE, **sizes), device_here(), random.Random(20)  # the same on every rank
    tokens = source_tokens(500_000).to(device)
    batches = [batch(tokens, num_sequences, config.T, step=step) for step in range(num_steps)]
    visits: dict[str, list[Visit]] = {name: [] for name in MODES}
    skipped: dict[str, str] = {}
    for _ in range(num_rounds):
        for name in order.sample(list(MODES), len(MODES)):
            if name not in skipped:
                found, why = tried(lambda name=name: _visit(config, MODES[name], batches, _narrow()))  # type: ignore[misc]
                skipped |= {name: why} if why else {}
                visits[name] += [found] if found else []
                _say(name, sizes, found or why)
    modes = {name: _mode(of_mode, warm_up) for name, of_mode in visits.items() if name not in skipped}
    for name, found in modes.items():
        exact = _visit(config, MODES[name], batches[:EXACT_STEPS], nullcontext())
        found |= {"exact_losses": exact["losses"], "exact_norms": exact["norms"]}
    return {"config": asdict(config), "sequences": num_sequences, "modes": modes, "skipped": skipped}


def _meet(device: torch.device) -> None:
    """NCCL has its memory before anything is measured."""
    p = dist.get_world_size()
    one, all_ = torch.zeros(1024, device=device), torch.zeros(1024 * p, device=device)
    dist.all_reduce(one)
    all_gather_single(all_, one)
    reduce_scatter_single(one, all_)


def _narrow() -> AbstractContextManager[object]:
    """On a GPU products are in bfloat16, weights in float32."""
    return torch.autocast("cuda", torch.bfloat16) if device_here().type == "cuda" else nullcontext()


def _visit(
    config: GPTConfig,
    mode: dict[str, Any],
    batches: list[tuple[Tensor, Tensor]],
    precision: AbstractContextManager[object],
) -> Visit:
    """A mode from nothing: built, trained, and let go as soon as this returns."""
    device = device_here()
    before, outside = _clean(device)
    model = GPT(config, **{"tp": dist.group.WORLD, **mode}, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=device.type == "cuda")
    reset_peak(device)
    found: Visit = {"losses": [], "norms": [], "ms": []}
    for x, y in batches:
        dist.barrier()  # ranks begin a step together
        begin_s = _now(device)
        loss = _step(model, optimizer, x, y, precision)
        found["ms"].append(1e3 * (_now(device) - begin_s))
        found["norms"].append(gradient_norm(model).item())  # the gradients are still those of this step
        found["losses"].append(loss.item())
    if device.type == "cuda":
        found["peak"] = [torch.cuda.max_memory_allocated() - before]
        found["outside"] = [max(0, _outside() - outside)]
    return found


def _step(model: GPT, optimizer: Any, x: Tensor, y: Tensor, precision: AbstractContextManager[object]) -> Tensor:
    optimizer.zero_grad()
    with precision:
        loss = model.loss(x, y)
    loss.backward()
    finish_gradients(model)
    optimizer.step()
    return loss.detach()


def _clean(device: torch.device) -> tuple[int, int]:
    """Let go of what the last visit left; the bytes that are there still, of tensors and outside the allocator."""
    let_go(device)
    return (torch.cuda.memory_allocated(), _outside()) if device.type == "cuda" else (0, 0)


def _outside() -> int:
    """Bytes of the card that torch's allocator does not know of: symmetric memory, NCCL's and cuBLAS's."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def _mode(visits: list[Visit], warm_up: int) -> dict[str, Any]:
    """A mode's figures: times and bytes of the slowest and the fullest rank; losses and norms of the first visit."""
    ms = slowest([visit["ms"] for visit in visits])  # [visits][steps]
    timed = [sample for visit in ms for sample in visit[warm_up:]]
    found = {"losses": visits[0]["losses"], "norms": visits[0]["norms"], "ms_by_step": ms[0], "ms": median(timed)}
    for kind in ("peak", "outside"):
        has = kind in visits[0]
        found[f"{kind}_GB"] = median(v[0] for v in slowest([v[kind] for v in visits])) / 1e9 if has else None
    return found


def _say(name: str, sizes: dict[str, Any], found: Any) -> None:
    """What a visit found, at once: a run on GPUs that is cut off has then told something."""
    text = found if isinstance(found, str) else f"{median(found['ms']):8.1f} ms, loss {found['losses'][-1]:.4f}"
    progress_here(f"profile: h {sizes['D']}, {name:18} {text}")
