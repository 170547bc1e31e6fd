"""The MLP: a product by columns, something for each element, a product by rows."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from tpcourse.block.config import GPTConfig
from tpcourse.block.forward import Pass
from tpcourse.block.weights import Weights


class MLP(nn.Module):
    """down(gelu(up(x))): [B, T or T_r, D] -> the same, with F/p hidden numbers on a rank."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = Weights(config.F, config.D, config.bias)
        self.down = Weights(config.D, config.F, config.bias)

    def forward(self, x: Tensor, here: Pass) -> Tensor:
        hidden = functional.gelu(here.column(x, self.up))  # [B, T, F/p]
        return here.row(hidden, self.down)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) (SwiGLU, arXiv:2002.05202), with gate and up in one product."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.gate_up = Weights(2 * config.F, config.D, config.bias)
        self.down = Weights(config.D, config.F, config.bias)

    def forward(self, x: Tensor, here: Pass) -> Tensor:
        gate, up = here.column(x, self.gate_up).chunk(2, -1)  # [B, T, F/p] each
        return here.row(functional.silu(gate) * up, self.down)
