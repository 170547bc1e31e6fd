"""One transformer layer as the memory formulas mean it: unfused attention, biases, dropout, two norms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tpcourse.dims import require_divisible


class TransformerLayer(nn.Module):
    """A pre-norm layer with causal attention, [B, T, D] -> [B, T, D].

    In bfloat16 it keeps sbh (34 + 5as/h) bytes for backward (arXiv:2205.05198, s = T, b = B, h = D, a = H).
    A part of a layer, as a rank holds it under tensor parallelism, has fewer `heads` of the same `head_width`
    and a smaller `hidden`.

    Raises: ValueError if the heads do not divide the width, or a size is below 1.
    Trap: dropout is `torch.native_dropout`, which keeps a mask of 1 byte; on the CPU `F.dropout` keeps a mask
    of the input's dtype.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_width: int | None = None,
        hidden: int | None = None,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if min(width, heads, head_width or 1, hidden or 1) < 1 or not 0 <= dropout < 1:
            sizes = f"width = {width}, heads = {heads}, head_width = {head_width}, hidden = {hidden}"
            raise ValueError(
                f"{sizes}, dropout = {dropout}: sizes are at least 1, dropout is from 0 to below 1"
            )
        self.heads, self.dropout = heads, dropout
        self.head_width = head_width or require_divisible(width, heads, "width")
        inner, hidden = heads * self.head_width, hidden or 4 * width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * inner), nn.Linear(inner, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, D]."""
        x = x + self.join(self.core(*self.project(x)))
        return x + self.mlp(x)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Norm and the first product of attention: [B, T, D] -> q, k, v of [B H, T, K]."""
        shape = (*x.shape[:2], 3, self.heads, self.head_width)
        qkv = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)  # [3, B, H, T, K]
        q, k, v = qkv.reshape(3, -1, x.shape[1], self.head_width)
        return q, k, v

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What has no weights: scores, softmax, dropout, and the sum of v: [B H, T, K] -> [B H, T, K]."""
        num_tokens = q.shape[1]
        mask = torch.full((num_tokens, num_tokens), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=self.head_width**-0.5)  # [B H, T, T]
        return torch.bmm(self.drop(torch.softmax(scores, -1)), v)

    def join(self, context: Tensor) -> Tensor:
        """The last product of attention, and dropout: [B H, T, K] -> [B, T, D]."""
        joined = context.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2)  # [B, T, H K]
        return self.drop(self.out(joined))

    def mlp(self, x: Tensor) -> Tensor:
        """Norm, two products with a GELU between them, dropout: [B, T, D] -> [B, T, D]."""
        return self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))

    def drop(self, x: Tensor) -> Tensor:
        """Dropout, in training."""
        return torch.native_dropout(x, self.dropout, True)[0] if self.training else x


def run_layer(layer: TransformerLayer, x: Tensor, recompute: str = "none") -> Tensor:
    """`layer(x)`, with nothing, the attention core ("selective") or the whole layer ("full") computed again
    in backward; values and gradients are the same.

    Raises: ValueError for another recompute.
    """
    if recompute == "none":
        return layer(x)
    if recompute == "full":
        return checkpoint(layer, x, use_reentrant=False)
    if recompute == "selective":
        context = checkpoint(layer.core, *layer.project(x), use_reentrant=False)
        x = x + layer.join(context)
        return x + layer.mlp(x)
    raise ValueError(f"recompute = {recompute!r} is unknown: use 'none', 'selective' or 'full'")
