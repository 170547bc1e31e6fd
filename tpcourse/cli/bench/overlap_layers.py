"""What each rank runs for `tpcourse bench overlap`: forward and backward of an MLP whose tokens are split.

"products" computes all that a rank computes and sends nothing; "one after the other" waits for each of its four
collectives; ours and torch's hide them, or try to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tpcourse.cli.bench import tensor_times
from tpcourse.cli.bench.overlap_ways import captured, far_from, ms_by_way, works
from tpcourse.cli.bench.ranks_here import progress_here
from tpcourse.conjugates import gather_scatter_sum, scatter_sum_gather
from tpcourse.ranks.timing import device_here

Call = Callable[[], Any]
FORMS = ("serial", "ring", "peer", "auto")
ALONE, ONE_BY_ONE, EAGER, COMPILED = "products", "one after the other", "parallelize_module", "compiled async TP"
TORCHS = (EAGER, COMPILED)
TOKENS = 1  # the dim of [B, T, D]
ON_GPU = (tensor_times.Size(1, 8192, 8192, 28672, 64), tensor_times.Size(1, 8192, 4096, 14336, 32))
ON_CPU = (tensor_times.Size(2, 16, 24, 48, 4),)


@dataclass(frozen=True)
class Numbers:
    """What this rank has: its tokens and all tokens with gradients of their outputs, and its part of the weights."""

    piece: Tensor
    whole: Tensor
    dpiece: Tensor
    dwhole: Tensor
    up: nn.Parameter
    down: nn.Parameter


def measure(repeats: int, with_graphs: bool) -> list[dict[str, Any]]:
    """A problem for forward and backward of each size, and one for forward alone; see `overlap.summary`."""
    found = []
    for size in ON_GPU if device_here().type == "cuda" else ON_CPU:
        progress_here(f"overlap: an MLP, {size.B * size.T} tokens, h {size.D}, F {size.F}")
        numbers = _numbers(size)
        steps = variants(size, numbers)
        for kind, calls in (("mlp", {name: pair[1] for name, pair in steps.items()}),
                            ("mlp_forward", {name: pair[0] for name, pair in steps.items()})):  # fmt: skip
            found.append(_measured(kind, size, calls, numbers, repeats, with_graphs))
    return found


def _measured(
    kind: str, size: Any, calls: dict[str, Call], n: Numbers, repeats: int, with_graphs: bool
) -> dict[str, Any]:
    calls, skipped = works(calls)
    errors = _errors({name: call for name, call in calls.items() if name in (ONE_BY_ONE, *FORMS)}, n)
    graphs, uncaptured = captured({k: v for k, v in calls.items() if k != COMPILED}) if with_graphs else ({}, {})
    problem = {
        "kind": kind,
        "shape": [size.B * size.T, size.D, size.F],
        "dtype": str(n.piece.dtype).removeprefix("torch."),
        "gemm": [ALONE],
        "serial": [ONE_BY_ONE],
        "torchs": [name for name in TORCHS if name in calls],
        "ms": ms_by_way(calls, graphs, repeats, in_a_row=2),
        "errors": errors,
        "skipped": skipped,
        "not_captured": uncaptured,
        "async_tp_fired": COMPILED in calls and _fires(calls[COMPILED]),
    }
    for graph in graphs.values():
        graph.end()
    return problem


def _errors(calls: dict[str, Call], n: Numbers) -> dict[str, float]:
    """Of each of ours, the largest error of y or of the gradients; torch's layers have weights of their own."""
    right: list[Tensor] = []
    errors = {}
    for name, call in calls.items():  # one after the other is the first
        result = call()
        found = [result, *(weight.grad for weight in (n.up, n.down) if weight.grad is not None)]
        right = right or [tensor.clone() for tensor in found]
        errors[name] = max(far_from(mine, theirs) for mine, theirs in zip(found, right, strict=True))
    return errors


def variants(size: Any, n: Numbers) -> dict[str, tuple[Call, Call]]:
    """Name -> (forward, which returns y; forward and backward, which returns the gradient of x)."""
    weights = [n.up, n.down]
    ours = {form: _pair(partial(_ours, n, form), n.piece, n.dpiece, weights) for form in FORMS}
    split = tensor_times._torchs(tensor_times.PlainMLP(size), TOKENS)
    theirs = list(split.parameters())
    return {
        ALONE: _pair(partial(_alone, n), n.whole, n.dwhole, weights),
        ONE_BY_ONE: _pair(partial(_one_by_one, n), n.piece, n.dpiece, weights),
        **ours,
        EAGER: _pair(split, n.piece, n.dpiece, theirs),
        COMPILED: _pair(_compiled(split), n.piece, n.dpiece, theirs),
    }


def _numbers(size: Any) -> Numbers:
    p, D = dist.get_world_size(), size.D
    x, dx = (tensor_times.random(size.B, size.T, D) for _ in range(2))
    up, down = (nn.Parameter(tensor_times.random(*s) / 32) for s in ((size.F // p, D), (D, size.F // p)))
    pieces = (whole.chunk(p, TOKENS)[dist.get_rank()].clone() for whole in (x, dx))
    piece, dpiece = pieces
    return Numbers(piece, x, dpiece, dx, up, down)


def _pair(forward: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor, weights: list[Any]) -> tuple[Call, Call]:
    x = x.clone().requires_grad_()

    def both() -> Tensor:
        for tensor in (x, *weights):
            tensor.grad = None
        tensor_times.waited(forward(x)).backward(dy)
        assert x.grad is not None
        return tensor_times.waited(x.grad)

    return lambda: tensor_times.waited(forward(x)).detach(), both


def _ours(n: Numbers, form: str, x: Tensor) -> Tensor:
    how: dict[str, Any] = {"tp": dist.group.WORLD, "sequence_dim": TOKENS, "overlap": form}
    return tensor_times.split_mlp(x, n.up, n.down, **how)


def _one_by_one(n: Numbers, x: Tensor) -> Tensor:
    how: dict[str, Any] = {"group": dist.group.WORLD, "dim": TOKENS}
    whole = gather_scatter_sum(x, **how)
    return scatter_sum_gather(F.linear(F.gelu(F.linear(whole, n.up)), n.down), **how)


def _alone(n: Numbers, x: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, n.up)), n.down)


def _compiled(split: nn.Module) -> Callable[[Tensor], Tensor]:
    """Torch's asynchronous TP: the compiler makes its fused operators of the gathers and scatters around products."""
    if device_here().type != "cuda":
        return _needs_a_gpu
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.reset()
    torch._inductor.config._micro_pipeline_tp = True
    return torch.compile(split)


def _fires(call: Call) -> bool:
    """Whether the compiler put torch's fused operators in: it leaves them out without a word."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    return any("fused_all_gather_matmul" in event.name for event in profiler.events())


def _needs_a_gpu(x: Tensor) -> Tensor:
    raise RuntimeError("it needs symmetric memory, and so a GPU")
