"""The modules of lesson 06's exercises, as a rank holds them. Imports torch: load it late."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tpcourse.check.lesson06.recipe import K, Weights

EPS = 1e-6


class Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * scale, for each token alone: [.., D] -> [.., D]. `seen` is its last input."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.scale = parameter(weights["scale"])
        self.seen: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.detach()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * self.scale


class Block(nn.Module):
    """A transformer block as one rank holds it: one head, a part of the MLP, norms and row biases whole."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (Norm({"scale": weights[f"norm{i}.scale"]}) for i in (1, 2, 3))
        self.qkv, self.out = (linear(weights, name) for name in ("qkv", "out"))
        self.up, self.down = (linear(weights, name) for name in ("up", "down"))
        self.attention_bias, self.mlp_bias = parameter(weights["attention_bias"]), parameter(weights["mlp_bias"])
        self.heard = 0  # tokens that attention saw last

    def attention(self, h: Tensor) -> Tensor:
        """This rank's head: all tokens [B, T, D] -> its part of the sum [B, T, D]."""
        self.heard = h.shape[1]
        q, k, v = self.qkv(h).chunk(3, -1)  # [B, T, K]
        later = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device).triu(1)
        scores = (q @ k.transpose(1, 2) * K**-0.5).masked_fill(later, float("-inf"))  # [B, T, T]
        return self.out(scores.softmax(-1) @ v)

    def mlp(self, h: Tensor) -> Tensor:
        """This rank's hidden units: [B, T, D] -> its part of the sum [B, T, D]."""
        return self.down(F.gelu(self.up(h)))


class Mlp(nn.Module):
    """Norm and MLP as one rank holds them; the norm's scale and the row bias are constants here."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.norm = Norm({"scale": weights["norm2.scale"]})
        self.norm.scale.requires_grad_(False)
        self.up, self.down = (linear(weights, name) for name in ("up", "down"))
        self.bias = parameter(weights["mlp_bias"]).requires_grad_(False)

    def split_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Those that require a gradient, with their names."""
        return [(name, leaf) for name, leaf in self.named_parameters() if leaf.requires_grad]

    def work(self, h: Tensor) -> Tensor:
        """This rank's hidden units: [B, T, D] -> its part of the sum [B, T, D]."""
        return self.down(F.gelu(self.up(h)))


def parameter(array: np.ndarray) -> nn.Parameter:
    """A copy that requires a gradient."""
    return nn.Parameter(torch.from_numpy(array.copy()))


def linear(weights: Weights, name: str) -> nn.Linear:
    """The product with these weights, with a bias if there is one."""
    weight = weights[f"{name}.weight"]
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=f"{name}.bias" in weights, dtype=torch.float64)
    made.weight = parameter(weight)
    if made.bias is not None:
        made.bias = parameter(weights[f"{name}.bias"])
    return made
