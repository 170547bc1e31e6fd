"""One pass through the model on this rank. All that the GPT sends is sent from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tpcourse import linear, sequence, vocab
from tpcourse.block.config import GPTConfig
from tpcourse.block.weights import Weights


@dataclass(frozen=True)
class Pass:
    """What the parts of the model share in one forward: the ranks, the tokens, and where masks come from.

    With sequence parallelism activations between the products are this rank's T_r tokens; without it they are
    whole, and equal on all ranks. `tp=None` is one device, and every method the plain operation.
    """

    config: GPTConfig
    tp: dist.ProcessGroup | None
    heads: linear.Heads
    seeds: sequence.Seeds
    sequence_parallel: bool
    regather: bool
    recompute: str
    overlap: str = "serial"  # a form of `tpcourse.overlap`
    is_training: bool = False
    step: int = 0  # counts forwards in training: each draws masks of its own
    num_tokens: int = 0  # T of this batch
    rotary: Tensor | None = None  # [2, T, K/2]

    @property
    def sequence_dim(self) -> int | None:
        """The dim along which tokens are split, if they are."""
        return 1 if self.sequence_parallel else None

    @property
    def _gather(self) -> dict[str, Any]:
        if not self.sequence_parallel:
            return {}
        how = {"num_tokens": self.num_tokens, "regather": self.regather, "overlap": self.overlap}
        return {"sequence_dim": 1, **how}

    def embed(self, tokens: Tensor, w: Weights) -> Tensor:
        """[B, T] and [V_r, D] -> [B, T, D], or [B, T_r, D]."""
        return vocab.vocab_embedding(tokens, w.weight, tp=self.tp, V=self.config.V, sequence_dim=self.sequence_dim)

    def column(self, x: Tensor, w: Weights) -> Tensor:
        """[B, T or T_r, D] and [F/p, D] -> [B, T, F/p]."""
        return linear.column_linear(x, w.weight, w.bias, tp=self.tp, **self._gather)

    def qkv(self, x: Tensor, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T or T_r, D] and [(H/p + 2 kv_r) K, D] -> q [B, T, H/p, K], k and v [B, T, kv_r, K]."""
        shape: dict[str, Any] = {"heads": self.heads, "head_width": self.config.K}
        return linear.qkv_linear(x, w.weight, w.bias, tp=self.tp, **shape, **self._gather)

    def row(self, x: Tensor, w: Weights) -> Tensor:
        """[B, T, F/p] and [D, F/p] -> [B, T, D], or [B, T_r, D]."""
        how: dict[str, Any] = {"sequence_dim": self.sequence_dim, "overlap": self.overlap}
        return linear.row_linear(x, w.weight, w.bias, tp=self.tp, **how)

    def places(self, w: Weights) -> Tensor:
        """The rows of this rank's tokens: [T, D] -> [T, D], or [T_r, D]."""
        rows = w.weight[: self.num_tokens]
        if not self.sequence_parallel:
            return rows
        return rows.split(sequence.token_sizes(self.num_tokens, tp=self.tp))[dist.get_rank(self.tp)]

    def drop(self, x: Tensor, site: str, *, is_split: bool | None = None) -> Tensor:
        """Dropout: masks agree on all ranks where x is equal on all, and differ where each has its own part."""
        if not self.drops:
            return x
        return sequence.dropout(x, self.config.dropout, self.generator(site, is_split))

    @property
    def drops(self) -> bool:
        """Whether dropout does anything in this pass."""
        return self.is_training and self.config.dropout > 0

    def generator(self, site: str, is_split: bool | None = None) -> torch.Generator:
        """A fresh generator for one place in the model; the same again whenever this pass is computed again."""
        is_split = self.sequence_parallel if is_split is None else is_split
        return (self.seeds.own if is_split else self.seeds.shared)(site, self.step)

    def again(self, what: str, fn: Callable[..., Tensor], *args: Any) -> Tensor:
        """`fn(*args)`; if `what` is what this model recomputes, backward calls it again and nothing is kept."""
        if what != self.recompute:
            return fn(*args)
        return checkpoint(fn, *args, use_reentrant=False, preserve_rng_state=False)
