"""`tpcourse bench profile`: modes train alike, and the figures follow from what was measured."""

from __future__ import annotations

import json
from functools import cache

import pytest
from rig import run_ranks

from tpcourse.cli.bench import profile, profile_here
from tpcourse.cli.bench.profile import ROUNDING, apart, summary
from tpcourse.cli.bench.profile_here import MODES, ON_GPU


def _measured(rank, group):
    return profile_here.measure_here(2)


@cache
def found():
    """What the first of two ranks reports; it is plain data."""
    return json.loads(json.dumps(run_ranks(_measured, 2, timeout=180)[0]))


def test_all_modes_have_one_device_s_losses_and_gradient_norms():
    (size,) = summary(found()).figures["sizes"]
    assert list(size["modes"]) == list(MODES) and size["skipped"] == {}
    for one in size["modes"].values():
        assert len(one["losses"]) == len(one["norms"]) == 4 and len(set(one["losses"])) == 4
        assert min(one["norms"]) > 0.1, "the gradients were read before they were cleared"
        assert len(one["exact_losses"]) == len(one["exact_norms"]) == 3
        assert max(one["loss_apart"], one["norm_apart"], one["exact_apart"]) < 1e-4


def test_times_are_those_of_steps_and_on_the_cpu_nobody_knows_a_peak():
    (size,) = found()["sizes"]
    for one in size["modes"].values():
        assert len(one["ms_by_step"]) == 4 and one["ms"] > 0
        assert one["peak_GB"] is one["outside_GB"] is None


def mode(ms, **more):
    return {
        "losses": [4.0, 2.0],
        "norms": [1.0, 0.5],
        "exact_losses": [4.0],
        "exact_norms": [1.0],
        "ms_by_step": [ms],
        "ms": ms,
        "peak_GB": 3.0,
        "outside_GB": 0.5,
        **more,
    }


def made_up(**of):
    """Figures in which all modes are equal but for what is given: name -> changes."""
    modes = {"one device": 8.0, "TP": 6.0, "TP + SP": 5.0, "TP + SP + overlap": 4.0}
    config = {"D": 512, "F": 1024, "L": 4, "T": 256}
    found = {name: mode(ms, **of.get(name.replace(" + ", "_"), {})) for name, ms in modes.items()}
    size = {"config": config, "sequences": 4, "modes": found, "skipped": {}}
    return {"backend": "nccl", "p": 2, "dtype": "bfloat16", "sizes": [size]}


def test_ratios_are_over_one_device_and_over_the_same_without_overlap():
    result = summary(made_up())
    row = (
        "h 512, F 1024, 4 layers, s 256, b 4",
        "TP + SP + overlap",
        4.0,
        0.5,
        0.8,
        3.0,
        0.5,
        2.0,
        *["0.0e+00"] * 4,
    )
    assert row in result.rows and result.figures["agree"] and result.table()


@pytest.mark.parametrize("changes", [
    {"norms": [1 + 1.1 * ROUNDING, 0.5]}, {"losses": [4.0, 2.0 * (1 + 1.1 * ROUNDING)]},
    {"exact_losses": [4.0 * 1.0002]}, {"exact_norms": [0.9998]},
    {"losses": [4.0, float("nan")]}, {"norms": [float("nan"), 0.5]}, {"exact_losses": [float("nan")]},
])  # fmt: skip
def test_numbers_that_differ_by_more_than_rounding_are_said(changes):
    figures = summary(made_up(TP_SP=changes)).figures
    assert not figures["agree"]
    said = "losses and gradient norms DIFFER FROM ONE DEVICE'S: h 512, F 1024, 4 layers, s 256, b 4, TP + SP"
    assert figures["verdict"] == said


def test_a_later_norm_in_bfloat16_may_be_off_by_more():
    assert summary(made_up(TP_SP={"norms": [1.0, 0.6]})).figures["agree"]


def test_the_largest_difference_of_any_step_counts():
    assert apart([1.0, 3.0, 4.0], [1.0, 2.0, 4.0]) == 0.5


def test_a_mode_that_does_not_run_is_skipped_with_a_word():
    figures = made_up()
    figures["sizes"][0]["modes"].pop("TP + SP + overlap")
    figures["sizes"][0]["skipped"] = {"TP + SP + overlap": "TypeError: overlap"}
    row = next(row for row in summary(figures).rows if row[1] == "TP + SP + overlap")
    assert row[2] == "skipped: TypeError: overlap" and len(row) == len(profile.COLUMNS)


def test_the_sizes_are_those_that_were_promised():
    assert [(s["D"], s["F"], s["L"], s["T"], b) for s, b, _ in ON_GPU] == [
        (512, 1024, 4, 256, 4), (512, 2048, 12, 1024, 8), (4096, 14336, 2, 4096, 2),
    ]  # fmt: skip


def test_the_command_measures_on_ranks_of_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr(profile, "on_bare_ranks", lambda *args: asked.append(args) or made_up())
    assert profile.measure(None).figures["p"] == 2
    assert asked == [("profile_here", "measure_here", None)]
