"""Torch's own tensor parallelism, `parallelize_module`, on the same MLP: the same values, as many collectives."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from ledger_help import fresh_ledger
from linear_cases import NAMES, OUT, TIGHT, B, D, draw, gradients, pieces, shard, weights
from rig import run_ranks
from torch import nn

from tpcourse import wire
from tpcourse.ledger import ledger
from tpcourse.linear import column_linear, row_linear

T, HIDDEN = 12, 16
"""Torch needs pieces of equal size here; ours do not."""


def torch_s(group, sequence_dim):
    """The MLP of `linear_cases`, split by torch; x and y are local tensors."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(D, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, OUT)).double()
    for parameter, value in zip(model.parameters(), weights(hidden=HIDDEN), strict=True):
        parameter.data.copy_(value)
    ends = Replicate() if sequence_dim is None else Shard(sequence_dim)
    plan = {"0": ColwiseParallel(input_layouts=ends), "2": RowwiseParallel(output_layouts=ends)}
    return parallelize_module(model, DeviceMesh.from_group(group, "cpu"), plan)


def _beside(rank, group):
    """For each pair: tensors that differ, our calls and torch's."""
    return [_compared(group, sequence_dim) for sequence_dim in (None, 1)]


def _compared(group, sequence_dim):
    x, factor = draw(0, B, T, D), shard(group, draw(9, B, T, OUT), sequence_dim)
    with fresh_ledger():
        with ledger() as ours:
            tensors = pieces(group, x, hidden=HIDDEN, sequence_dim=sequence_dim)
            hidden = F.gelu(column_linear(*tensors[:3], tp=group, sequence_dim=sequence_dim))
            y = row_linear(hidden, *tensors[3:], tp=group, sequence_dim=sequence_dim)
            found = [y, *gradients(y, tensors, factor)]
        model = torch_s(group, sequence_dim)
        mine = shard(group, x, sequence_dim).clone().requires_grad_()
        with ledger() as theirs:
            y = model(mine)
            expected = [y, *gradients(y, [mine, *model.parameters()], factor)]
    if sequence_dim is not None:
        found[-1] = wire.all_reduce(found[-1], group=group)  # torch takes the bias's gradient from the gathered dy
    expected = [t.to_local() if hasattr(t, "to_local") else t for t in expected]
    same = [torch.allclose(a, b, rtol=TIGHT, atol=TIGHT) for a, b in zip(found, expected, strict=True)]
    wrong = [name for name, is_same in zip(NAMES, same, strict=True) if not is_same]
    return wrong, *(dict(Counter(event.op for event in log.events)) for log in (ours, theirs))


@pytest.mark.parametrize("p", [2, 4])
def test_it_has_the_same_values_and_gradients_and_makes_as_many_calls(p):
    replicated, split = {"all_reduce": 2}, {"all_gather": 2, "reduce_scatter": 2}
    assert run_ranks(_beside, p) == [[([], replicated, replicated), ([], split, split)]] * p
