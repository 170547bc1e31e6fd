"""The ways to gather and multiply, and to multiply and scatter, that `tpcourse bench overlap` compares: data.

Each computes the same product from the same random numbers. Ours are the forms of `tpcourse.overlap`; torch's are its
fused operators, which need symmetric memory; "NCCL + cuBLAS" is one call of each library, with nothing around.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tpcourse.overlap import gather_product, product_scatter
from tpcourse.wire.torch_calls import all_gather_single, reduce_scatter_single

Call = Callable[[], Any]
GATHER, SCATTER = "gather_product", "product_scatter"
FORMS = ("serial", "ring", "peer", "auto", "popular")
TRIES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    GATHER: {
        "peer, 2 pieces": {"form": "peer", "pieces": 2},
        "peer, 4 pieces": {"form": "peer", "pieces": 4},
    },
    SCATTER: {
        "peer, 1 piece": {"form": "peer", "pieces": 1},
        "peer, 4 pieces": {"form": "peer", "pieces": 4},
    },
}
"""The same with options: kind -> variant -> options."""
PRODUCTS = ("product", "product, [K, N]")
"""The unsplit product alone, with the weight as it is and laid out for it: the faster one is T_gemm."""
PLAIN, FUSED = "NCCL + cuBLAS", "torch's fused"
SERIALS = (PLAIN, "serial")
"""The faster one is T_serial."""


@dataclass(frozen=True)
class Shape:
    """[M, K] by [K, N]: M tokens of all ranks; N of a rank's columns (gather), or K of a rank's rows (scatter)."""

    M: int
    K: int
    N: int
    dtype: str = "bfloat16"


ON_GPU: Mapping[str, tuple[Shape, ...]] = {
    GATHER: (
        Shape(16384, 8192, 4096), Shape(8192, 8192, 14336), Shape(8192, 4096, 7168), Shape(4096, 4096, 4096),
        Shape(2048, 4096, 4096, "float16"),
    ),
    SCATTER: (
        Shape(16384, 4096, 8192), Shape(8192, 14336, 8192), Shape(8192, 7168, 4096), Shape(4096, 4096, 4096),
        Shape(2048, 4096, 4096),
    ),
}  # fmt: skip
"""The first of each kind is drawn as a timeline too."""
ON_CPU: Mapping[str, tuple[Shape, ...]] = {
    GATHER: (Shape(48, 32, 24, "float32"), Shape(24, 16, 40, "float32")),
    SCATTER: (Shape(48, 24, 32, "float32"),),
}


class Problem:
    """The numbers of one shape on this rank, drawn at random: a new answer for each problem."""

    def __init__(self, kind: str, shape: Shape, device: torch.device, group: Any = None) -> None:
        self.kind, self.shape, self.group = kind, shape, group or dist.group.WORLD
        self.p, dtype = dist.get_world_size(group), getattr(torch, shape.dtype)
        generator = torch.Generator(device).manual_seed(7 + dist.get_rank())  # ranks have different ones
        draw = partial(torch.randn, generator=generator, device=device, dtype=dtype)
        rows = shape.M // self.p if kind == GATHER else shape.M
        self.x = draw(rows, shape.K)
        self.weight = nn.Parameter(draw(shape.N, shape.K) / shape.K**0.5)  # so that what backward needs is kept
        self.matrix = self.weight.detach().t()  # [K, N], a view
        self.whole = draw(shape.M, shape.K) if kind == GATHER else self.x

    def ours(self, **options: Any) -> Tensor:
        """A form of `tpcourse.overlap`."""
        operation = gather_product if self.kind == GATHER else product_scatter
        return operation(self.x, self.weight, tp=self.group, sequence_dim=0, **options).detach()

    def plain(self) -> Tensor:
        """One after the other, as one would write it."""
        if self.kind == GATHER:
            whole = self.x.new_empty(self.shape.M, self.shape.K)
            all_gather_single(whole, self.x, group=self.group)
            return torch.mm(whole, self.matrix)
        result = self.x.new_empty(self.shape.M // self.p, self.shape.N)
        reduce_scatter_single(result, torch.mm(self.x, self.matrix), group=self.group)
        return result

    def fused(self) -> Tensor:
        """Torch's operator, with the weight as `nn.Linear` has it; the gather keeps the whole x for backward."""
        name = self.group.group_name
        if self.kind == GATHER:
            return torch.ops.symm_mem.fused_all_gather_matmul(self.x, [self.matrix], 0, name)[1][0]
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(self.x, self.matrix, "sum", 0, name)

    def calls(self) -> dict[str, Call]:
        """Name -> what is timed."""
        laid_out = self.matrix.contiguous()
        return {
            PRODUCTS[0]: partial(torch.mm, self.whole, self.matrix),
            PRODUCTS[1]: partial(torch.mm, self.whole, laid_out),
            PLAIN: self.plain,
            FUSED: self.fused,
            **{form: partial(self.ours, form=form) for form in FORMS},
            **{name: partial(self.ours, **options) for name, options in TRIES[self.kind].items()},
        }


def allow_symmetric_memory(device: torch.device, group: Any = None) -> None:
    """Torch's micro-pipelining does nothing without this call, which is deprecated; elsewhere it is not needed."""
    if device.type == "cuda":
        import torch.distributed._symmetric_memory as symmetric_memory

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            symmetric_memory.enable_symm_mem_for_group((group or dist.group.WORLD).group_name)
