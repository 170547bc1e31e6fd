"""A GPT, written once. On p ranks it is the same model with a part of each weight, as the table of layouts says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tpcourse.block.attention import Attention, rotary_table
from tpcourse.block.config import GPTConfig
from tpcourse.block.forward import Pass
from tpcourse.block.layouts import LAYOUTS, Shard, shard_of
from tpcourse.block.mlp import MLP, GatedMLP
from tpcourse.block.weights import Weights, initial
from tpcourse.linear import Heads
from tpcourse.memory.formulas import require_recompute
from tpcourse.sequence import Seeds, token_sizes
from tpcourse.vocab import vocab_cross_entropy
from tpcourse.wire.inputs import place


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). Shapes: [B, T, D] -> [B, T, D], or T_r for T.

    Traffic: 2 all-reduces forward and 2 backward; with sequence parallelism 2 all-gathers and 2 reduce-scatters
    each way, the same bytes.
    """

    def __init__(self, config: GPTConfig, site: str) -> None:
        super().__init__()
        self.site = site
        self.norm_attention, self.attention = norm(config), Attention(config, f"{site}.attention")
        self.norm_mlp, self.mlp = norm(config), (MLP if config.mlp == "gelu" else GatedMLP)(config)

    def forward(self, x: Tensor, here: Pass) -> Tensor:
        x = x + here.drop(self.attention(self.norm_attention(x), here), f"{self.site}.out")
        return x + here.drop(self.mlp(self.norm_mlp(x), here), f"{self.site}.down")


class GPT(nn.Module):
    """Tokens to logits: an embedding, L blocks, a norm, the head. Shapes: [B, T] -> [B, T, V_r].

    Equal arguments give the same model at any p: the initial weights are bit for bit those of one device.
    `tp=None` is one device. `sequence_parallel` splits the tokens between the products; `regather` then keeps
    only a rank's own tokens for backward and gathers them again there, and `overlap` names the form of
    `tpcourse.overlap` in which products and tokens' collectives run at the same time. `recompute` is "none",
    "selective" (attention without its products) or "full" (each block). `layouts` is the table that says which part of
    a weight is here.

    Traffic, forward and backward each: that of its blocks, and one all-reduce (embedding forward, head backward) or
    its sequence parallel equal. `loss` adds two small all-reduces forward.
    Raises: ValueError if p does not divide the heads, or exceeds V, or regather or overlap comes alone; in forward if
    there are more tokens than T learned positions, or fewer than ranks with sequence parallelism.
    Trap: after backward `finish_gradients(model)`, before the norm and the optimizer.
    """

    def __init__(
        self,
        config: GPTConfig,
        *,
        tp: dist.ProcessGroup | None = None,
        sequence_parallel: bool = False,
        regather: bool = False,
        overlap: str = "serial",
        recompute: str = "none",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        layouts: Mapping[str, str] = LAYOUTS,
    ) -> None:
        super().__init__()
        require_recompute(recompute)
        _require_split(sequence_parallel, regather, overlap)
        self.config, self.tp, self.layouts = config, tp, layouts
        self.forwards = 0  # in training; each draws dropout masks of its own
        self.tokens = Weights(config.V, config.D)
        self.places = None if config.rotary else Weights(config.T, config.D)
        self.blocks = nn.ModuleList(Block(config, f"blocks.{i}") for i in range(config.L))
        self.norm = norm(config)
        self.head = None if config.tied else Weights(config.V, config.D)
        heads = Heads(config.H, config.kv_heads, tp)  # first: it says best which heads do not divide
        self.shards = fill(self, layouts, seed, dtype, device)
        seeds = Seeds(seed, tp=tp, device=self.tokens.weight.device)
        is_split = sequence_parallel and tp is not None
        self.here = Pass(config, tp, heads, seeds, is_split, regather, recompute, overlap if is_split else "serial")

    def forward(self, tokens: Tensor) -> Tensor:
        here = self.new_pass(tokens.shape[1])
        x = here.embed(tokens, self.tokens)  # [B, T, D], or [B, T_r, D]
        if self.places is not None:
            x = x + here.places(self.places)
        x = here.drop(x, "tokens")
        for block in self.blocks:
            x = here.again("full", block, x, here)
        return here.column(self.norm(x), self.tokens if self.head is None else self.head)  # [B, T, V_r]

    def loss(self, tokens: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """The cross-entropy of the next tokens, equal on all ranks. Shapes: [B, T] twice -> []."""
        return vocab_cross_entropy(self(tokens), targets, tp=self.tp, V=self.config.V, reduction=reduction)

    @property
    def num_parameters(self) -> int:
        """The weights of the one-device model, each counted once, whatever is here of them."""
        return sum(prod(shard.shape) for shard in self.shards.values())

    def new_pass(self, num_tokens: int) -> Pass:
        """What all parts share in one forward over T tokens; `block(x, model.new_pass(T))` runs one block."""
        T = self.config.T
        if self.places is not None and num_tokens > T:
            raise ValueError(f"{num_tokens} tokens, but the model learned T = {T} positions: give at most {T}")
        if self.here.sequence_parallel:
            token_sizes(num_tokens, tp=self.tp)  # says so if some rank would have none
        self.forwards += self.training
        rotary = rotary_table(num_tokens, self.config.K, self.tokens.weight) if self.config.rotary else None
        changes = {"is_training": self.training, "step": self.forwards, "num_tokens": num_tokens, "rotary": rotary}
        return replace(self.here, **changes)


def norm(config: GPTConfig) -> nn.Module:
    """A norm over the last dim, [.., D] -> [.., D]: its weights are whole on every rank."""
    if config.norm == "rms":
        return nn.RMSNorm(config.D, eps=config.eps, device="meta")
    return nn.LayerNorm(config.D, eps=config.eps, bias=config.bias, device="meta")


def fill(
    model: GPT, layouts: Mapping[str, str], seed: int, dtype: torch.dtype, device: torch.device | str
) -> dict[str, Shard]:
    """Give the model its initial weights, this rank's part of each, and say for each which part that is."""
    r, p = (0, 1) if model.tp is None else place(model.tp)
    shards = {}
    for name, parameter in list(model.named_parameters()):
        shape = tuple(parameter.shape)
        shards[name] = shard_of(name, shape, model.config, p, r, layouts)
        part = shards[name].cut(initial(name, shape, seed=seed, L=model.config.L))
        module, _, last = name.rpartition(".")
        setattr(model.get_submodule(module), last, nn.Parameter(part.to(device, dtype)))
    return shards


def _require_split(sequence_parallel: bool, regather: bool, overlap: str) -> None:
    """Raises: ValueError for what is done with split tokens, where none are."""
    if regather and not sequence_parallel:
        raise ValueError("regather=True gathers tokens again, but sequence_parallel=False splits none: give both")
    if overlap != "serial" and not sequence_parallel:
        raise ValueError(f"overlap = {overlap!r} hides tokens' collectives: give sequence_parallel=True too")
