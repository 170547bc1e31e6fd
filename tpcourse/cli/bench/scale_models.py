"""What each rank runs for `tpcourse bench scale`: a GPT and an MLP with tensor parallelism over groups of any size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tpcourse.block import GPT, GPTConfig, finish_gradients
from tpcourse.cli.bench.profile_here import MODES, STYLE
from tpcourse.cli.bench.ranks_here import progress_here
from tpcourse.cli.bench.scale import ALL_REDUCE, ALONE, SPLIT
from tpcourse.cli.bench.tensor_times import TOKENS, Size, place, random, split_mlp, step_of
from tpcourse.ranks.timing import device_here, median_seconds
from tpcourse.train import batch, source_tokens

Groups = dict[int, dist.ProcessGroup | None]
"""A number of ranks -> the group of so many that this rank is in; None for itself alone."""
Step = Callable[[], Any]
MODELS: dict[str, tuple[tuple[dict[str, Any], int], ...]] = {
    "cuda": (
        ({"D": 512, "H": 8, "F": 2048, "L": 12, "T": 1024}, 8),
        ({"D": 8192, "H": 64, "F": 28672, "L": 2, "T": 2048}, 2),
    ),
    "cpu": (({"D": 32, "H": 8, "F": 64, "L": 2, "T": 16}, 2),),
}
"""Sizes and the sequences of a batch: one where launches and messages are all, one where products are."""
LAYERS = {
    "cuda": (Size(4, 2048, 8192, 28672, 64), Size(4, 2048, 4096, 14336, 32), Size(1, 2048, 2048, 8192, 16)),
    "cpu": (Size(2, 16, 24, 48, 8),),
}


def models(groups: Groups, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of forward and backward, and the loss, of each model in each mode: all of a model interleaved."""
    found = []
    for sizes, num_sequences in MODELS[device_here().type]:
        config = GPTConfig(**STYLE, **sizes)
        name = f"h {config.D}, F {config.F}, {config.L} layers"
        progress_here(f"scale: {name}")
        steps = _steps(config, num_sequences, groups)
        losses = {key: step().item() for key, step in steps.items()}
        for key, seconds in median_seconds(steps, repeats=repeats, in_a_row=2).items():
            mode, p = key
            found.append({"model": name, "mode": mode, "p": p, "ms": 1e3 * seconds, "loss": losses[key]})
    return found


def _steps(config: GPTConfig, num_sequences: int, groups: Groups) -> dict[tuple[str, int], Step]:
    """(mode, p) -> forward and backward: the same weights and the same batch."""
    tokens = source_tokens(500_000).to(device_here())
    x, y = batch(tokens, num_sequences, config.T, step=0)
    found: dict[tuple[str, int], Step] = {}
    for p, group in groups.items():
        for mode, how in MODES.items():
            if (mode == ALONE) == (group is None):
                model = GPT(config, **{"tp": group, **how}, **place())
                found[mode, p] = partial(_forward_backward, model, x, y)
    return found


def _forward_backward(model: GPT, x: Tensor, y: Tensor) -> Tensor:
    model.zero_grad()
    loss = model.loss(x, y)
    loss.backward()
    finish_gradients(model)
    return loss.detach()


def pairs(groups: Groups, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of an MLP's forward and backward with either pair, and of its products alone."""
    found = []
    for size in LAYERS[device_here().type]:
        for p, group in groups.items():
            if group is None:
                continue
            seconds = median_seconds(_pair_steps(size, group), repeats=repeats, in_a_row=2)
            ms = {name: 1e3 * value for name, value in seconds.items()}
            found.append({"tokens": size.B * size.T, "D": size.D, "F": size.F, "p": p, "ms": ms})
    return found


def _pair_steps(size: Size, tp: dist.ProcessGroup) -> dict[str, Step]:
    p, r = dist.get_world_size(tp), dist.get_rank(tp)
    x, dy = (random(size.B, size.T, size.D) for _ in range(2))
    piece, dpiece = (whole.chunk(p, TOKENS)[r].clone() for whole in (x, dy))
    up, down = (nn.Parameter(random(*s) / size.D**0.5) for s in ((size.F // p, size.D), (size.D, size.F // p)))

    ours = partial(split_mlp, up=up, down=down, tp=tp)

    def products(x: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, up)), down)

    return {
        "products": step_of(products, x.clone(), dy, [up, down]),
        ALL_REDUCE: step_of(partial(ours, sequence_dim=None), x.clone(), dy, [up, down]),
        SPLIT: step_of(partial(ours, sequence_dim=TOKENS), piece, dpiece, [up, down]),
    }
