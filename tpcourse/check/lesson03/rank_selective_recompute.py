"""Runs in a rank: a layer's forward with recompute, its values, gradients, bytes kept and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tpcourse.check.lesson03.in_rank import kind_of, seeded
from tpcourse.layer import TransformerLayer, run_layer
from tpcourse.memory import saved

Forward = Callable[[TransformerLayer, Tensor], Tensor]
TOLERANCE = 1e-9


def probe(
    answer: Any, device: torch.device, seed: int, batch: int, tokens: int, heads: int, head_width: int
) -> dict[str, Any]:
    """The answer beside the plain layer and beside the wrong ways to recompute."""
    seeded(seed)
    layer = TransformerLayer(heads * head_width, heads).to(device, torch.float64)
    x = torch.randn(batch, tokens, heads * head_width, dtype=torch.float64, device=device, requires_grad=True)
    right, plain_flops = step(run_layer, layer, x, seed)
    kinds: list[str | None] = []
    got, flops = step(_noting(answer, kinds), layer, x, seed)
    kept = {name: kept_by(forward, layer, x) for name, forward in FORWARDS.items()}
    core, projection = 4 * batch * tokens**2 * layer.heads * head_width, 6 * x.numel() * heads * head_width
    return {
        "result": kinds[-1],
        "differs": differences(got, right, kinds[-1]),
        "held": kept_by(answer, layer, x),
        "budget": kept["selective"],
        "kept": kept,
        "extra": flops - plain_flops,
        "core": core,
        "projection": projection,
        "forward": plain_flops // 3,
    }


def _noting(answer: Any, kinds: list[str | None]) -> Any:
    """The answer, which leaves the kind of its result."""

    def noted(layer: TransformerLayer, x: Tensor) -> Any:
        y = answer(layer, x)
        kinds.append(kind_of(y))
        return y

    return noted


def step(forward: Any, layer: TransformerLayer, x: Tensor, seed: int) -> tuple[dict[str, Tensor | None], int]:
    """Output and every gradient, and the operations of all products, forward and backward."""
    x.grad = None
    layer.zero_grad()
    seeded(seed)
    with FlopCounterMode(display=False) as counter:
        y = forward(layer, x)
        if isinstance(y, Tensor) and y.requires_grad:
            y.square().sum().backward()
    found = {"y": y if isinstance(y, Tensor) else None, "dx": x.grad}
    found |= {f"d{name}": p.grad for name, p in layer.named_parameters()}
    return {
        key: None if t is None else t.detach().clone() for key, t in found.items()
    }, counter.get_total_flops()


def differences(
    got: dict[str, Tensor | None], right: dict[str, Tensor | None], kind: str | None
) -> dict[str, str]:
    """What is wrong with each tensor that differs."""
    found = {}
    for name, expected in right.items():
        tensor = got[name]
        if expected is None:
            continue
        if tensor is None:
            found[name] = f"{kind or 'nothing'} was returned, not a tensor" if name == "y" else "no gradient arrived"
        elif tensor.shape != expected.shape or tensor.dtype != expected.dtype:
            found[name] = (
                f"{tensor.dtype} of shape {list(tensor.shape)}, not float64 of {list(expected.shape)}"
            )
        elif not (error := ((tensor - expected).abs().max() / expected.abs().max()).item()) <= TOLERANCE:
            found[name] = f"largest relative error {error:.1g}"
    return found


def kept_by(forward: Any, layer: TransformerLayer, x: Tensor) -> int:
    """Bytes that autograd keeps; 0 if the output needs no backward."""
    try:
        return saved(forward, layer, x).bytes
    except ValueError:
        return 0


def _mlp(layer: TransformerLayer, x: Tensor) -> Tensor:
    x = x + layer.join(layer.core(*layer.project(x)))
    return x + checkpoint(layer.mlp, x, use_reentrant=False)


def _core_and_mlp(layer: TransformerLayer, x: Tensor) -> Tensor:
    core = checkpoint(layer.core, *layer.project(x), use_reentrant=False)
    x = x + layer.join(core)
    return x + checkpoint(layer.mlp, x, use_reentrant=False)


FORWARDS: dict[str, Forward] = {
    "none": run_layer,
    "selective": lambda layer, x: run_layer(layer, x, "selective"),
    "mlp": _mlp,
    "core and mlp": _core_and_mlp,
}
