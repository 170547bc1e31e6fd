"""Causal attention by heads: a rank has H/p of them, and no head needs another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from tpcourse.block.config import GPTConfig
from tpcourse.block.forward import Pass
from tpcourse.block.weights import Weights


class Attention(nn.Module):
    """[B, T or T_r, D] -> the same: one product for q, k and v, attention on this rank's heads, one product back."""

    def __init__(self, config: GPTConfig, site: str) -> None:
        super().__init__()
        self.site = site
        self.qkv = Weights((config.H + 2 * config.kv_heads) * config.K, config.D, config.bias)
        self.out = Weights(config.D, config.D, config.bias)

    def forward(self, x: Tensor, here: Pass) -> Tensor:
        q, k, v = here.qkv(x, self.qkv)  # [B, T, H/p, K], [B, T, kv_r, K] twice
        if here.rotary is not None:
            q, k = rotate(q, here.rotary), rotate(k, here.rotary)
        core = self.fused if here.config.attention == "fused" else self.unfused
        mixed = here.again("selective", core, q, k, v, here)  # [B, T, H K / p]
        return here.row(mixed, self.out)

    def fused(self, q: Tensor, k: Tensor, v: Tensor, here: Pass) -> Tensor:
        """Torch's kernel, which never holds the scores: -> [B, T, H K / p]."""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [B, H/p or kv_r, T, K]
        rate, shares = here.config.dropout if here.drops else 0.0, k.shape[1] < q.shape[1]
        with drawing_from(here.generator(self.site, is_split=True) if here.drops else None):
            mixed = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, dropout_p=rate, enable_gqa=shares
            )
        return mixed.transpose(1, 2).flatten(2)

    def unfused(self, q: Tensor, k: Tensor, v: Tensor, here: Pass) -> Tensor:
        """Scores, softmax, dropout and the sum of v, one after another: -> [B, T, H K / p].

        The g query heads that share a K/V head stand below each other, so no K or V is repeated.
        """
        B, T, heads, K = q.shape
        kv, g = k.shape[2], heads // k.shape[2]
        q = q.unflatten(2, (kv, g)).permute(0, 2, 3, 1, 4).reshape(B * kv, g * T, K)
        k, v = (x.transpose(1, 2).reshape(B * kv, T, K) for x in (k, v))
        mask = torch.full((T, T), float("-inf"), dtype=q.dtype, device=q.device).triu(1).repeat(g, 1)
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=K**-0.5)  # [B kv, g T, T]
        shares = here.drop(torch.softmax(scores, -1), self.site, is_split=True)
        return torch.bmm(shares, v).view(B, kv, g, T, K).permute(0, 3, 1, 2, 4).flatten(2)


def rotary_table(T: int, K: int, like: Tensor) -> Tensor:
    """Cosine and sine of the angles t / 10000^(2i/K) of token t and pair i (arXiv:2104.09864): [2, T, K/2]."""
    exact = torch.promote_types(like.dtype, torch.float32)
    pairs = torch.arange(0, K, 2, dtype=exact, device=like.device) / K
    angles = torch.outer(torch.arange(T, dtype=exact, device=like.device), 10000.0**-pairs)
    return torch.stack([angles.cos(), angles.sin()]).to(like.dtype)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn pair (i, i + K/2) of every head by the angle of its token: [B, T, heads, K] -> the same."""
    cos, sin = table.to(x.dtype).unsqueeze(2)  # [T, 1, K/2] each; under autocast x has 16 bits
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


@contextmanager
def drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Let torch's own random numbers come from a generator, for kernels that take none; afterwards all is as before."""
    if generator is None:
        yield
        return
    devices = [generator.device] if generator.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        if devices:
            torch.cuda.set_rng_state(generator.get_state(), generator.device)
        else:
            torch.set_rng_state(generator.get_state())
        yield
