"""The weights of a product, and initial values that any number of ranks draws alike."""

from __future__ import annotations

from hashlib import blake2b
from math import sqrt

import torch
from torch import Tensor, nn

STD = 0.02


class Weights(nn.Module):
    """A weight [out, in] and perhaps a bias [out], as `nn.Linear` has them, but of a shape only.

    They are made with one-device shapes and no memory; `GPT` then puts this rank's part in their place.
    """

    def __init__(self, num_out: int, num_in: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_out, num_in, device="meta"))
        self.bias = nn.Parameter(torch.empty(num_out, device="meta")) if bias else None

    def extra_repr(self) -> str:
        bias = "" if self.bias is None else f", bias {list(self.bias.shape)}"
        return f"{list(self.weight.shape)}{bias}"


def initial(name: str, shape: tuple[int, ...], *, seed: int, L: int) -> Tensor:
    """The whole initial weight, drawn on the CPU in float32: a pure function of its arguments.

    Matrices are normal with deviation 0.02; those that end a branch of the residual stream, out and down, with
    0.02/sqrt(2L), as in GPT-2. Norms scale by 1, biases are 0.
    Shapes: -> shape. Traffic: none. A rank keeps its part; on a GPU the whole is never made.
    Trap: drawing each rank's part from a generator of its own gives another model at another number of ranks.
    """
    if name.endswith("bias"):
        return torch.zeros(shape)
    if "norm" in name:
        return torch.ones(shape)
    digest = blake2b(f"{seed} {name}".encode(), digest_size=8).digest()  # hash() differs between processes
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    ends_a_branch = name.endswith(("out.weight", "down.weight"))
    return torch.empty(shape).normal_(std=STD / sqrt(2 * L) if ends_a_branch else STD, generator=generator)
