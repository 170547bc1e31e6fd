"""What each rank runs for `tpcourse bench link`: a step of a small GPT alone, tensor parallel and data parallel."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from tpcourse.block import GPT, GPTConfig
from tpcourse.data import DataParallel
from tpcourse.ranks.timing import device_here, median_seconds

CONFIG = GPTConfig(V=256, T=64, D=192, H=6, L=2)
SEQUENCES = (1, 4, 16)  # of a rank; tensor parallel ranks share those of both


def model() -> dict[str, Any]:
    """The sizes of the model and how many parameters it has."""
    return {**asdict(CONFIG), "num_parameters": GPT(CONFIG).num_parameters}


def measure_here(repeats: int) -> list[dict[str, float]]:
    """Milliseconds of forward and backward by tokens a rank, and of each way's collectives with nothing else.

    All ways have as many FLOPs on a rank. Traffic: tensor parallel 4L + 2 all-reduces of the activations of all ranks'
    sequences, data parallel one of the gradients.
    """
    world, p = dist.group.WORLD, dist.get_world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // p))  # both hosts are this machine
    alone, tensor, data = _model(), _model(tp=world), _model()
    DataParallel(data, dp=world)
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    for n in SEQUENCES:
        calls["alone", n] = _step(alone, n)
        calls["tensor", n] = _step(tensor, n * p)
        calls["data", n] = _step(data, n)
        calls["tensor_wire", n] = _wire(n * p * CONFIG.T * CONFIG.D, 4 * CONFIG.L + 2)
        calls["data_wire", n] = _wire(data.num_parameters, 1)
    took = median_seconds(calls, repeats=repeats, in_a_row=1)
    ways = ("alone", "tensor", "data", "tensor_wire", "data_wire")
    return [{"tokens": n * CONFIG.T, **{f"{way}_ms": 1e3 * took[way, n] for way in ways}} for n in SEQUENCES]


def _wire(elements: int, times: int) -> Callable[[], object]:
    x = torch.zeros(elements, device=device_here())

    def sums() -> None:
        for _ in range(times):
            dist.all_reduce(x)

    return sums


def _model(tp: Any = None) -> GPT:
    return GPT(CONFIG, tp=tp, device=device_here())


def _step(gpt: GPT, sequences: int) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(sequences)
    tokens = torch.randint(CONFIG.V, (sequences, CONFIG.T), generator=generator).to(device_here())

    def step() -> None:
        gpt.zero_grad()
        gpt.loss(tokens, tokens).backward()

    return step
