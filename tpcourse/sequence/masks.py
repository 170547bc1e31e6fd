"""Dropout whose masks agree where tensors are replicated, differ where they are split, and need no storing."""

from __future__ import annotations

from hashlib import blake2b

import torch
import torch.distributed as dist
from torch import Tensor

from tpcourse.wire.inputs import place


class Seeds:
    """Generators by place in the program: `site` names the dropout, `step` the pass through the model.

    What a generator draws follows from (seed, site, step) alone, and of `own` from the rank too. So a pass that is
    run again, as in recomputation, draws the same mask, and no generator's state is kept, sent or put back.
    All ranks of tp give the same seed; those that see other sequences (dp) give another.
    Traffic: none.
    Raises: ValueError unless seed and step are whole numbers, and a site is a name or a whole number.
    Trap: a generator moves on with every draw, so ask for it inside what is recomputed. Each micro-batch is
    a pass of its own, with its own `step`.
    """

    def __init__(self, seed: int, *, tp: dist.ProcessGroup | None, device: torch.device | str = "cpu") -> None:
        self.rank = 0 if tp is None else place(tp)[0]
        self.seed = _require_int(seed, "seed")
        self.device = torch.empty(0, device=device).device  # "cuda" gets its number

    def shared(self, site: str | int, step: int) -> torch.Generator:
        """For a replicated tensor: the same on every rank."""
        return self._generator(site, step)

    def own(self, site: str | int, step: int) -> torch.Generator:
        """For a split tensor, such as this rank's tokens or heads: another on every rank."""
        return self._generator(site, step, self.rank)

    def _generator(self, site: str | int, step: int, *rank: int) -> torch.Generator:
        if not isinstance(site, str):
            _require_int(site, "a site without a name")
        key = repr((self.seed, site, _require_int(step, "step"), *rank))
        digest = blake2b(key.encode(), digest_size=8).digest()  # hash() of a name differs between processes
        return torch.Generator(self.device).manual_seed(int.from_bytes(digest, "big"))


def dropout(x: Tensor, rate: float, generator: torch.Generator, training: bool = True) -> Tensor:
    """Zero each element with probability `rate`, and scale the others by 1 / (1 - rate).

    y = x m / (1 - rate), dx = dy m / (1 - rate), with a mask m of zeros and ones that the generator draws.
    Shapes: [...] -> [...]. The mask follows from the generator and the shape. It is all that is kept for backward: 1
    byte an element.
    Traffic: none.
    Raises: ValueError unless 0 <= rate < 1, or if the generator is on another device than x.
    Trap: `seeds.own` for a replicated x makes it differ from rank to rank, and nothing complains; `seeds.shared` for a
    split one drops the same places of every piece.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate = {rate} is not a share that can be dropped: use 0 to below 1")
    if rate == 0 or not training:
        return x
    if generator.device != x.device:
        raise ValueError(
            f"the generator is on {generator.device} and x on {x.device}: make Seeds(..., device={str(x.device)!r})"
        )
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device).bernoulli_(1 - rate, generator=generator)
    return (x * mask).mul_(1 / (1 - rate))


def _require_int(value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number, not {value!r}: ranks must agree on it to the digit")
    return value
