"""`tpcourse bench tensor`: every variant computes the same layer, and the figures follow from what was measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import pytest
import torch
from ledger_help import fresh_ledger
from rig import run_ranks

from tpcourse.cli.bench import tensor_models, tensor_times
from tpcourse.cli.bench.tensor import summary
from tpcourse.cli.bench.tensor_times import Size
from tpcourse.ledger import ledger

TINY = Size(B=2, T=8, D=16, F=32, H=4)
PAIR = {"all_reduce": 2}


def _calls(rank, group):
    """The collectives of each variant's forward and backward."""
    counts = {}
    with fresh_ledger():
        for part, steps in (("mlp", tensor_times._mlp_steps(TINY)), ("block", tensor_times._block_steps(TINY))):
            for name, step in steps.items():
                with ledger() as log:
                    step()
                counts[part, name] = dict(Counter(event.op for event in log.events))
    return counts


def test_every_variant_makes_the_calls_that_its_name_says():
    for counts in run_ranks(_calls, 2):
        assert counts["mlp", "one device"] == counts["block", "one device"] == {}
        assert counts["mlp", "ours"] == counts["mlp", "torch's"] == PAIR
        split = {"all_gather": 2, "reduce_scatter": 2}
        assert counts["mlp", "ours, tokens split"] == counts["mlp", "torch's, tokens split"] == split
        assert counts["block", "ours"] == counts["block", "torch's"] == {"all_reduce": 4}
        assert counts["block", "ours, tokens split"] == {"all_gather": 4, "reduce_scatter": 4}


def _models(rank, group):
    return tensor_models.memory(1), tensor_models.model(2)


def test_modes_hold_what_the_formulas_say_and_have_equal_losses():
    for held, trained in run_ranks(_models, 2):
        alone = held["held_bytes"]["one device"]
        B, T, D, H = 1, 48, 48, 24
        whole, scores = 34, 5 * H * T / D
        assert alone == pytest.approx(2 * B * T * D * (whole + scores), rel=0.01)
        shares = [
            (10 + 24 / 2 + scores / 2) / (whole + scores), 0.5, 0.5 * whole / (whole + scores)
        ]
        found = [size / alone for name, size in held["held_bytes"].items() if name != "one device"]
        assert found == pytest.approx(shares, rel=0.01)
        losses = torch.tensor([mode["losses"] for mode in trained["modes"].values()])
        assert losses.shape == (3, 4) and torch.allclose(losses, losses[0].expand_as(losses), rtol=1e-4)


def test_ratios_are_ours_over_torchs_and_shares_are_of_one_device():
    ms = {"one device": 8.0, "ours": 3.0, "torch's": 4.0}
    row = {"tokens": 16, **asdict(TINY), "ms": ms}
    found = {
        "mlp": [row],
        "block": [],
        "memory": {"held_bytes": {"one device": 100, "TP": 54}},
        "model": {"modes": {"one device": {"ms": 2.0, "peak_bytes": None, "losses": [5.0, 4.0]}}},
    }
    result = summary(found)
    assert result.figures["mlp"][0]["ratio"] == 0.75
    assert ("activations", "TP", "", 0.54, "", 54, "") in result.rows
    assert result.rows[-1] == ("model", "one device", 2.0, 1.0, "", "", 4.0)
