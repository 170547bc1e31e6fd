"""The same block by torch's `parallelize_module`: the same values, the same number of collectives."""

from __future__ import annotations

import torch
from block_cases import CLASSIC, random_state
from ledger_help import fresh_ledger
from rig import run_ranks
from torch import nn
from torch.nn import functional as F

from tpcourse import ledger as lg
from tpcourse.block import GPT, from_one_device

T = 8


class PlainAttention(nn.Module):
    """Causal attention on as many heads of width K as its weights have."""

    def __init__(self, config):
        super().__init__()
        self.K = config.K
        self.q, self.k, self.v, self.out = (nn.Linear(config.D, config.D) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, self.K)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class PlainMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up, self.down = nn.Linear(config.D, config.F), nn.Linear(config.F, config.D)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class PlainBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm_attention, self.attention = nn.LayerNorm(config.D), PlainAttention(config)
        self.norm_mlp, self.mlp = nn.LayerNorm(config.D), PlainMLP(config)

    def forward(self, x):
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


def plain_state(config):
    """The weights of block 0 of the random model, with q, k and v apart."""
    state = {}
    for name, value in random_state(config).items():
        if name.startswith("blocks.0."):
            name = name.removeprefix("blocks.0.")
            if ".qkv." in name:
                for part, piece in zip("qkv", value.chunk(3), strict=True):
                    state[name.replace("qkv", part)] = piece
            else:
                state[name] = value
    return state


def parallel_by_torch(block, group, sequence_parallel):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as torch_tp

    mesh = DeviceMesh.from_group(group, "cpu")
    tokens = Shard(1) if sequence_parallel else Replicate()
    enter = torch_tp.PrepareModuleInput(input_layouts=tokens, desired_input_layouts=Replicate())
    plan = {"attention": enter, "mlp": enter}
    plan |= {f"attention.{name}": torch_tp.ColwiseParallel() for name in "qkv"}
    plan |= {"mlp.up": torch_tp.ColwiseParallel()}
    plan |= {name: torch_tp.RowwiseParallel(output_layouts=tokens) for name in ("attention.out", "mlp.down")}
    if sequence_parallel:
        plan |= {name: torch_tp.SequenceParallel(use_local_output=True) for name in ("norm_attention", "norm_mlp")}
    return torch_tp.parallelize_module(block, mesh, plan)


def measure(block, x, *more):
    """Output, dx, and the calls forward and backward."""
    x = x.clone().requires_grad_()
    with lg.ledger() as forward:
        y = block(x, *more)
    with lg.ledger() as backward:
        y.square().sum().backward()
    counts = [{op: log.count(op) for op in sorted({event.op for event in log.events})} for log in (forward, backward)]
    return y.detach(), x.grad, counts


def _both(rank, group):
    """For TP and TP+SP: whether torch's values are ours and the one-device block's, and both counts of calls."""
    x = torch.randn(2, T, CLASSIC.D, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = []
    for split in (False, True):
        piece = x.chunk(2, 1)[rank] if split else x
        ours = GPT(CLASSIC, tp=group, sequence_parallel=split, dtype=torch.float64)
        from_one_device(ours, random_state(CLASSIC))
        one, theirs = PlainBlock(CLASSIC).double(), PlainBlock(CLASSIC).double()
        one.load_state_dict(plain_state(CLASSIC))
        theirs.load_state_dict(plain_state(CLASSIC))
        theirs = parallel_by_torch(theirs, group, split)
        with fresh_ledger():
            results = [measure(ours.blocks[0], piece, ours.new_pass(T)), measure(theirs, piece)]
            expected = [part.chunk(2, 1)[rank] if split else part for part in measure(one, x)[:2]]
        for y, dx, _ in results:
            torch.testing.assert_close(y, expected[0], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(dx, expected[1], rtol=1e-12, atol=1e-12)
        found.append([counts for *_, counts in results])
    return found


def test_the_block_by_parallelize_module_has_the_same_values_and_the_same_collectives():
    for (ours, theirs), (ours_split, theirs_split) in run_ranks(_both, 2):
        assert ours == theirs == [{"all_reduce": 2}] * 2
        assert ours_split == theirs_split == [{"all_gather": 2, "reduce_scatter": 2}] * 2
