"""What each rank runs for `tpcourse bench tensor`: the bytes that blocks keep for backward, and a model that trains."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from tpcourse import memory as memory_of
from tpcourse.block import GPT, GPTConfig, clip_gradients, finish_gradients
from tpcourse.ranks.timing import device_here
from tpcourse.train import batch, source_tokens

MODES: dict[str, dict[str, Any]] = {
    "one device": {"tp": None},
    "TP": {},
    "TP, tokens split": {"sequence_parallel": True, "regather": True},
    "TP, tokens split, selective": {"sequence_parallel": True, "regather": True, "recompute": "selective"},
}
COUNTED: dict[str, Any] = {
    "norm": "layer", "mlp": "gelu", "bias": True,
    "rotary": False, "attention": "unfused", "dropout": 0.1,
}
"""What the formulas of arXiv:2205.05198 count."""


def memory(repeats: int) -> dict[str, Any]:
    """Runs in the rank: bytes that blocks keep for backward, and on a GPU the allocator's peak, by mode.

    On a GPU the two blocks are passed up to 56 times, so that what one layer needs in passing weighs little.
    """
    on_gpu = device_here().type == "cuda"
    sizes: dict[str, Any] = {"V": 256, "T": 2048, "D": 4096, "H": 32, "L": 2}
    if not on_gpu:
        sizes |= {"T": 48, "D": 48, "H": 24}
    num_passes = _num_passes(sizes) if on_gpu else 1
    found: dict[str, Any] = {"sizes": sizes, "num_passes": num_passes, "held_bytes": {}, "peak_bytes": {}}
    for name, mode in MODES.items():
        how = {"tp": dist.group.WORLD, **mode, "device": device_here(), "dtype": torch.bfloat16}
        model = GPT(GPTConfig(**sizes, **COUNTED), **how)
        found["held_bytes"][name], found["peak_bytes"][name] = _weigh(model, num_passes)
        del model
    return found


def _num_passes(sizes: dict[str, Any]) -> int:
    """As many as one device has room for in 9/10 of its memory; 34 + 5 a s / h is in units of s b h bytes."""
    one_pass = sizes["L"] * sizes["T"] * sizes["D"] * (34 + 5 * sizes["H"] * sizes["T"] / sizes["D"])
    room = torch.tensor(torch.cuda.mem_get_info()[0], device=device_here())
    dist.all_reduce(room, op=dist.ReduceOp.MIN)
    return max(1, min(56, int(0.9 * room.item() / one_pass)))


def _weigh(model: GPT, num_passes: int) -> tuple[int, int | None]:
    """Bytes kept after the forward of all blocks, and the most that the allocator gave out in forward and backward."""
    config, p = model.config, dist.get_world_size() if model.here.sequence_parallel else 1
    x = torch.randn(1, config.T // p, config.D, dtype=torch.bfloat16, device=device_here(), requires_grad=True)

    def forward() -> torch.Tensor:
        here, y = model.new_pass(config.T), x
        for block in [*model.blocks] * num_passes:
            y = block(y, here)
        return y

    if x.device.type == "cpu":
        return memory_of.saved(forward).bytes, None
    forward().sum().backward()  # gradients are there, and libraries have their workspace
    reset_peak(x.device)
    before = torch.cuda.memory_allocated()
    y = forward()
    kept = torch.cuda.memory_allocated() - before - y.nbytes
    y.sum().backward()
    return kept, torch.cuda.max_memory_allocated() - before


def model(repeats: int) -> dict[str, Any]:
    """Runs in the rank: a GPT of 12 layers, width 512, hidden 2048 (a small one on the CPU), trained in each mode."""
    sizes: dict[str, Any] = {"V": 256, "T": 1024, "D": 512, "H": 8, "F": 2048, "L": 12}
    if device_here().type == "cpu":
        sizes |= {"T": 24, "D": 48, "H": 24, "F": 192, "L": 2}
    config = GPTConfig(**sizes, mlp="gelu", norm="layer", bias=True, rotary=False)
    names = [name for name, mode in MODES.items() if "recompute" not in mode]
    return {"sizes": asdict(config), "modes": {name: _trained(config, MODES[name], 2 * repeats) for name in names}}


def _trained(config: GPTConfig, mode: dict[str, Any], num_steps: int) -> dict[str, Any]:
    """Milliseconds of a step (the slowest rank's), the peak of the allocator, and the losses."""
    device = device_here()
    model = GPT(config, **{"tp": dist.group.WORLD, **mode}, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    tokens = source_tokens(500_000).to(device)
    reset_peak(device)
    losses, seconds = [], []
    for step in range(num_steps):
        x, y = batch(tokens, 8 if device.type == "cuda" else 2, config.T, step=step)
        begin = _now(device)
        losses.append(_train_step(model, optimizer, x, y).item())
        seconds.append(_now(device) - begin)
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return {"ms": 1e3 * median(slowest.tolist()[min(5, num_steps // 2) :]), "peak_bytes": peak, "losses": losses}


def _train_step(model: GPT, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step; on a GPU products are in bfloat16, weights in float32."""
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16) if x.is_cuda else nullcontext():
        loss = model.loss(x, y)
    loss.backward()
    finish_gradients(model)
    clip_gradients(model, 1.0)
    optimizer.step()
    return loss.detach()


def reset_peak(device: torch.device) -> None:
    """Begin to look for a new peak of the allocator, where there is one."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
