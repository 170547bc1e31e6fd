"""Models that the tests of the block share, and a GPT in plain torch to compare them with."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tpcourse.block import GPT, GPTConfig

MODERN = GPTConfig(V=261, T=11, D=24, H=12, kv_heads=2, F=20, L=2)
"""RMS norm, SwiGLU, rotary positions, K/V heads shared by ranks at 4, V and T that nothing divides, tied."""
CLASSIC = GPTConfig(
    V=259, T=9, D=24, H=12, F=18, L=2, norm="layer", mlp="gelu", bias=True, rotary=False, tied=False,
    attention="unfused",
)  # fmt: skip
"""Layer norm, GELU, learned positions, biases, an own head, a hidden width that 4 does not divide."""


def random_state(config: GPTConfig, seed: int = 0) -> dict[str, Tensor]:
    """A one-device state dict in float64 in which no bias is 0 and no scale 1."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shard.shape, generator=generator, dtype=torch.float64) / 4 + ("norm" in name)
        for name, shard in GPT(config).shards.items()
    }


def token_batch(config: GPTConfig, B: int = 3, T: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(config.V, (B, (T or config.T) + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def plain_loss(state: dict[str, Tensor], config: GPTConfig, tokens: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of a GPT with these weights, written without the package."""
    x = state["tokens.weight"][tokens]
    if not config.rotary:
        x = x + state["places.weight"][: tokens.shape[1]]
    for i in range(config.L):
        w = {name.removeprefix(f"blocks.{i}."): value for name, value in state.items()}
        x = x + _attention(_norm(x, w, "norm_attention", config), w, config)
        x = x + _mlp(_norm(x, w, "norm_mlp", config), w, config)
    head = state["tokens.weight" if config.tied else "head.weight"]
    logits = _norm(x, state, "norm", config) @ head.T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _norm(x, w, name, config):
    weight = w[f"{name}.weight"]
    if config.norm == "rms":
        return x / (x.square().mean(-1, keepdim=True) + config.eps).sqrt() * weight
    return F.layer_norm(x, x.shape[-1:], weight, w.get(f"{name}.bias"), config.eps)


def _attention(x, w, config):
    B, T, D = x.shape
    H, kv, K = config.H, config.kv_heads, D // config.H
    qkv = F.linear(x, w["attention.qkv.weight"], w.get("attention.qkv.bias"))
    q, k, v = (part.view(B, T, -1, K).transpose(1, 2) for part in qkv.split([H * K, kv * K, kv * K], -1))
    if config.rotary:
        q, k = _turned(q), _turned(k)
    k, v = k.repeat_interleave(H // kv, 1), v.repeat_interleave(H // kv, 1)
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    shares = (q @ k.transpose(2, 3) / K**0.5).masked_fill(later, float("-inf")).softmax(-1)
    mixed = (shares @ v).transpose(1, 2).reshape(B, T, D)
    return F.linear(mixed, w["attention.out.weight"], w.get("attention.out.bias"))


def _turned(x):
    """Rotary positions by complex numbers; x is [B, heads, T, K]."""
    T, K = x.shape[2:]
    pairs = torch.complex(x[..., : K // 2], x[..., K // 2 :])
    speeds = torch.tensor([10000 ** (-2 * i / K) for i in range(K // 2)], dtype=torch.float64)
    turns = torch.polar(torch.ones(T, K // 2, dtype=torch.float64), torch.arange(T)[:, None] * speeds)
    return torch.cat([(pairs * turns).real, (pairs * turns).imag], -1)


def _mlp(x, w, config):
    if config.mlp == "gelu":
        hidden = F.gelu(F.linear(x, w["mlp.up.weight"], w.get("mlp.up.bias")))
    else:
        both = F.linear(x, w["mlp.gate_up.weight"], w.get("mlp.gate_up.bias"))
        hidden = F.silu(both[..., : config.F]) * both[..., config.F :]
    return F.linear(hidden, w["mlp.down.weight"], w.get("mlp.down.bias"))


def wrong_tensors(found: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-12) -> list[str]:
    """Names of the tensors that are not equal, up to `rtol` of the largest element."""
    assert found.keys() == expected.keys()
    return [name for name in expected if not error_of(found[name], expected[name]) <= rtol]  # nan is wrong too


def error_of(found: Tensor, expected: Tensor) -> float:
    """The largest difference, in largest elements."""
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-300)).item()
