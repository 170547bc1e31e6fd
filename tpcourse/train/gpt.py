"""A GPT as small as it can be, on one device: what training steps are tried and measured on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). Shapes: [B, T, D] -> [B, T, D]."""

    def __init__(self, D: int, H: int, dropout: float) -> None:
        super().__init__()
        self.H, self.dropout = H, dropout
        self.norm_attention, self.norm_mlp = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._drop(self.out(self._attention(self.qkv(self.norm_attention(x)))))
        return x + self._drop(self.down(F.gelu(self.up(self.norm_mlp(x)))))

    def _attention(self, qkv: Tensor) -> Tensor:
        q, k, v = qkv.unflatten(-1, (3, self.H, -1)).permute(2, 0, 3, 1, 4)  # [B, H, T, K] each
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)  # [B, T, D]

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class GPT(nn.Module):
    """Tokens to logits: embeddings, L blocks, a norm, and the embedding again as the head (one tied weight).

    Shapes: [B, T] int64 -> [B, T, V], for T up to the T it was made with. 12 L D^2 weights in the blocks.
    Raises: ValueError if D does not divide by H.
    """

    def __init__(
        self, *, V: int = 256, T: int = 32, D: int = 32, H: int = 4, L: int = 2, dropout: float = 0.0, tied: bool = True
    ) -> None:
        super().__init__()
        if D % H:
            nearest = f"{D // H * H or H} or {(D // H + 1) * H}"
            raise ValueError(f"D = {D} does not divide by H = {H} heads: use D = {nearest}")
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block(D, H, dropout) for _ in range(L))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        for weight in (self.tokens.weight, self.places.weight, self.head.weight):
            nn.init.normal_(weight, std=0.02)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))  # [B, T, D]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
