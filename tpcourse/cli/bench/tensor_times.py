"""What each rank runs for `tpcourse bench tensor`: forward and backward of an MLP and of a block, in one process.

Variants are one device, ours, ours with the tokens split, and torch's `parallelize_module` (both pairs for the MLP).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tpcourse.block import GPT, GPTConfig
from tpcourse.linear import column_linear, row_linear
from tpcourse.ranks.timing import device_here, median_seconds

Step = Callable[[], object]
TOKENS = 1  # the dim of [B, T, D]


@dataclass(frozen=True)
class Size:
    """B sequences of T tokens, width D, hidden F, H heads."""

    B: int
    T: int
    D: int
    F: int
    H: int


ON_GPU = (Size(4, 2048, 8192, 28672, 64), Size(4, 2048, 4096, 14336, 32), Size(1, 2048, 2048, 8192, 16),
          Size(1, 2048, 512, 2048, 8))  # fmt: skip
ON_CPU = (Size(2, 48, 192, 768, 24), Size(2, 48, 48, 192, 24))


def mlp(repeats: int) -> list[dict[str, Any]]:
    """Runs in the rank: milliseconds of an MLP's forward and backward, by size and variant."""
    return [_row(size, _mlp_steps(size), repeats) for size in _sizes()]


def block(repeats: int) -> list[dict[str, Any]]:
    """Runs in the rank: the same of a transformer block with attention."""
    return [_row(size, _block_steps(size), repeats) for size in _sizes()]


def _sizes() -> tuple[Size, ...]:
    return ON_GPU if device_here().type == "cuda" else ON_CPU


def _row(size: Size, steps: dict[str, Step], repeats: int) -> dict[str, Any]:
    seconds = median_seconds(steps, repeats=repeats, in_a_row=2)
    ms = {name: 1e3 * value for name, value in seconds.items()}
    return {"tokens": size.B * size.T, **asdict(size), "ms": ms}


def place() -> dict[str, Any]:
    """Device and dtype of all weights and inputs."""
    device = device_here()
    return {"device": device, "dtype": torch.bfloat16 if device.type == "cuda" else torch.float32}


def step_of(forward: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor, weights: list[nn.Parameter]) -> Step:
    """Forward and backward to the input and all weights."""
    x = x.requires_grad_()

    def step() -> None:
        for tensor in (x, *weights):
            tensor.grad = None
        waited(forward(x)).backward(dy)

    return step


def waited(y: Tensor) -> Tensor:
    """The same tensor, once it is there: torch's layers return one that waits when it is read, and nobody reads it."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    if isinstance(y, AsyncCollectiveTensor):
        y.wait()
    return y


def random(*shape: int) -> Tensor:
    """Normal numbers where this rank computes."""
    return torch.randn(*shape, **place())


def split_mlp(x: Tensor, up: Tensor, down: Tensor, **how: Any) -> Tensor:
    """Two layers of ours with a GELU between them: columns, then rows. Shapes: [B, T, D], [F/p, D], [D, F/p]."""
    return row_linear(F.gelu(column_linear(x, up, **how)), down, **how)


def _mlp_steps(size: Size) -> dict[str, Step]:
    tp, p = dist.group.WORLD, dist.get_world_size()
    x, dy = random(size.B, size.T, size.D), random(size.B, size.T, size.D)
    piece, dpiece = (whole.chunk(p, TOKENS)[dist.get_rank()].clone() for whole in (x, dy))
    alone, torchs, split = PlainMLP(size), _torchs(PlainMLP(size), None), _torchs(PlainMLP(size), TOKENS)
    weights = ((alone.up.weight, 0), (alone.down.weight, 1))  # numbers alike: a GPU is faster on small ones
    up, down = (nn.Parameter(w.detach().chunk(p, dim)[dist.get_rank()].clone()) for w, dim in weights)

    ours = partial(split_mlp, up=up, down=down, tp=tp)

    return {
        "one device": step_of(alone, x.clone(), dy, list(alone.parameters())),
        "ours": step_of(partial(ours, sequence_dim=None), x.clone(), dy, [up, down]),
        "ours, tokens split": step_of(partial(ours, sequence_dim=TOKENS), piece.clone(), dpiece, [up, down]),
        "torch's": step_of(torchs, x.clone(), dy, list(torchs.parameters())),
        "torch's, tokens split": step_of(split, piece.clone(), dpiece, list(split.parameters())),
    }


def _block_steps(size: Size) -> dict[str, Step]:
    p, x, dy = dist.get_world_size(), random(size.B, size.T, size.D), random(size.B, size.T, size.D)
    piece, dpiece = (whole.chunk(p, TOKENS)[dist.get_rank()].clone() for whole in (x, dy))
    torchs = _torchs(PlainBlock(size), None)
    return {
        "one device": _our_block(size, x.clone(), dy, tp=None),
        "ours": _our_block(size, x.clone(), dy, tp=dist.group.WORLD),
        "ours, tokens split": _our_block(size, piece, dpiece, tp=dist.group.WORLD, sequence_parallel=True),
        "torch's": step_of(torchs, x.clone(), dy, list(torchs.parameters())),
    }


def _our_block(size: Size, x: Tensor, dy: Tensor, **how: Any) -> Step:
    config = GPTConfig(V=256, T=size.T, D=size.D, H=size.H, L=1, F=size.F, mlp="gelu", rotary=False)
    model = GPT(config, **how, **place())
    here = model.new_pass(size.T)
    return step_of(lambda x: model.blocks[0](x, here), x, dy, list(model.blocks[0].parameters()))


class PlainMLP(nn.Module):
    """Two linear layers with a GELU between them, as torch writes it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(a, b, bias=False, **place()) for a, b in ((size.D, size.F), (size.F, size.D)))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class PlainAttention(nn.Module):
    """Causal attention as torch writes it; the number of heads follows from what a rank holds."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.K = size.D // size.H
        self.q, self.k, self.v, self.out = (nn.Linear(size.D, size.D, bias=False, **place()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.K)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class PlainBlock(nn.Module):
    """A block as torch writes it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = (nn.RMSNorm(size.D, eps=1e-5, **place()) for _ in range(2))
        self.attention, self.mlp = PlainAttention(size), PlainMLP(size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


def _torchs(module: nn.Module, sequence_dim: int | None) -> nn.Module:
    """The module split by torch: columns, then rows; what q, k and v share is entered once."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tensor_parallel

    ends = Replicate() if sequence_dim is None else Shard(sequence_dim)
    column = tensor_parallel.ColwiseParallel(input_layouts=ends)
    row = tensor_parallel.RowwiseParallel(output_layouts=ends)
    once = tensor_parallel.PrepareModuleInput(input_layouts=(ends,), desired_input_layouts=(Replicate(),))
    styles = {"q": column, "k": column, "v": column, "up": column, "out": row, "down": row, "attention": once}
    names = (name for name, _ in module.named_modules())
    plan = {name: styles[name.rpartition(".")[2]] for name in names if name.rpartition(".")[2] in styles}
    return tensor_parallel.parallelize_module(module, DeviceMesh.from_group(dist.group.WORLD, device_here().type), plan)
