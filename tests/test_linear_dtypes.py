"""Columns and rows in 16 bits and under autocast: what travels, what is kept, and in which dtype gradients come."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from ledger_help import fresh_ledger
from linear_cases import B, D, draw, gradients, on_one_device, pieces, shard
from rig import run_ranks

from tpcourse import memory
from tpcourse.ledger import ledger
from tpcourse.linear import column_linear, row_linear

T, CLOSE = 9, 5e-2


def _run(group, dtype, sequence_dim, autocast=False):
    """y and gradients of the MLP, the dtypes that travelled, and whether y is close to one device's float64."""
    tensors = pieces(group, draw(0, B, T, D), sequence_dim=sequence_dim, to=dtype)
    more = {} if sequence_dim is None else {"sequence_dim": 1}
    with fresh_ledger(), ledger() as log:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            hidden = column_linear(*tensors[:3], tp=group, num_tokens=T, **more)
            y = row_linear(F.gelu(hidden), *tensors[3:], tp=group, **more)
        found = gradients(y, tensors)
    truth = shard(group, on_one_device(draw(0, B, T, D))["y"], sequence_dim)
    close = float((y - truth).abs().max() / truth.abs().max()) < CLOSE
    return y.dtype, {g.dtype for g in found}, {event.dtype for event in log.events}, close


def _dtypes(rank, group):
    return [
        _run(group, dtype, sequence_dim, autocast)
        for sequence_dim in (None, 1)
        for dtype, autocast in ((torch.bfloat16, False), (torch.float32, True), (torch.float64, True))
    ]


def test_gradients_come_in_the_dtype_of_the_weights_and_the_product_s_dtype_travels():
    b16, f32, f64 = torch.bfloat16, torch.float32, torch.float64
    plain = (b16, {b16}, {"bfloat16"}, True)
    under_autocast = (b16, {f32}, {"bfloat16"}, True)
    untouched = (f64, {f64}, {"float64"}, True)  # autocast leaves float64 alone, as for torch's own linear
    assert run_ranks(_dtypes, 2) == [[plain, under_autocast, untouched] * 2] * 2


def _kept(rank, group):
    """Bytes that a column keeps under autocast beside the weights in 16 bits, and its y beside torch's."""
    x, weight = draw(0, B, T, D).float().requires_grad_(), draw(1, 4, D).float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        kept = memory.saved(column_linear, x, weight, tp=group)
        same = torch.equal(column_linear(x, weight, tp=group), F.linear(x, weight))
    return kept.bytes - 2 * weight.numel(), same


def test_under_autocast_a_column_is_torch_s_product_and_keeps_its_input_in_16_bits():
    assert run_ranks(_kept, 2) == [(2 * B * T * D, True)] * 2
