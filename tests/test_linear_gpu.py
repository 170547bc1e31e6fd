"""Columns and rows on NCCL, as many ranks as there are GPUs, at most 4."""

from __future__ import annotations

import pytest
import torch
from linear_cases import TIGHT, errors, layouts, shapes
from rig import run_ranks

NUM_GPUS = min(4, torch.cuda.device_count())
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 CUDA GPUs, found {NUM_GPUS}"),
]


def _apart(rank, group, cases):
    """Cases and tensors that are not those of one device."""
    found = {name: errors(group, to="cuda", **case) for name, case in cases()}
    return [f"{name}: {tensor}" for name, one in found.items() for tensor, error in one.items() if not error < TIGHT]


@pytest.mark.parametrize("p", range(2, NUM_GPUS + 1))
@pytest.mark.parametrize("cases", [layouts, shapes])
def test_an_mlp_of_a_column_and_a_row_is_the_one_device_mlp_on_nccl(cases, p):
    assert run_ranks(_apart, p, cases, backend="nccl") == [[]] * p
