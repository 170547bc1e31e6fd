"""The formulas of memory, against published figures and each other."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from tpcourse import memory
from tpcourse.memory import (
    Held,
    Peak,
    Rates,
    activation_bytes,
    gpt_parameters,
    layer_flops,
    model_state_bytes,
)

BILLION = 10**9
PAPER = {"batch": 1, "tokens": 2048, "width": 4096, "heads": 32}
UNIT = 1 * 2048 * 4096


def ratio(**how):
    return activation_bytes(**PAPER, **how) / activation_bytes(**PAPER)


def test_model_states_are_16_bytes_a_parameter_and_12_without_the_master_copy():
    assert sum(model_state_bytes(1).values()) == 16
    assert sum(model_state_bytes(1, master=False).values()) == 12
    assert model_state_bytes(5) == {"parameter": 10, "gradient": 10, "master": 20, "moment": 40}


def test_ten_billion_parameters_hold_160_gigabytes_or_120_and_seventy_billion_1120():
    assert sum(model_state_bytes(10 * BILLION).values()) == 160 * BILLION
    assert sum(model_state_bytes(10 * BILLION, master=False).values()) == 120 * BILLION
    assert sum(model_state_bytes(70 * BILLION).values()) == 1120 * BILLION


def test_a_layer_keeps_34_plus_5as_over_h_and_34_and_2():
    extra = 5 * PAPER["heads"] * PAPER["tokens"] / PAPER["width"]
    assert activation_bytes(**PAPER) / UNIT == 34 + extra
    assert activation_bytes(**PAPER, recompute="selective") / UNIT == 34
    assert activation_bytes(**PAPER, recompute="full") / UNIT == 2


def test_tensor_parallelism_splits_24_of_34_and_sequence_parallelism_all_of_it():
    assert activation_bytes(**PAPER, tp=4, recompute="selective") / UNIT == 10 + 24 / 4
    assert activation_bytes(**PAPER, tp=4) / UNIT == 10 + 24 / 4 + 5 * 32 * 2048 / (4096 * 4)
    assert activation_bytes(**PAPER, tp=4, sequence_parallel=True) * 4 == activation_bytes(**PAPER)
    assert activation_bytes(**PAPER, tp=4, recompute="full") / UNIT == 2
    assert activation_bytes(**PAPER, tp=4, recompute="full", sequence_parallel=True) / UNIT == 0.5


def test_two_ranks_hold_the_published_shares_of_activations():
    assert ratio(tp=2) == pytest.approx(0.544, abs=5e-4)
    assert ratio(tp=2, sequence_parallel=True) == 0.5
    assert ratio(tp=2, sequence_parallel=True, recompute="selective") == pytest.approx(0.149, abs=5e-4)


def test_elements_of_8_bytes_count_four_times_and_masks_do_not():
    assert activation_bytes(**PAPER, recompute="selective", element_bytes=8) / UNIT == 16 * 8 + 2
    scores = activation_bytes(**PAPER, element_bytes=8) - activation_bytes(
        **PAPER, recompute="selective", element_bytes=8
    )
    assert scores == (2 * 8 + 1) * PAPER["heads"] * PAPER["tokens"] ** 2


def test_recompute_costs_the_attention_products_or_a_third():
    plain = layer_flops(2, 512, 1024)
    assert layer_flops(2, 512, 1024, recompute="full") * 3 == plain * 4
    assert layer_flops(2, 512, 1024, recompute="selective") - plain == 4 * 2 * 512**2 * 1024
    assert plain == 72 * 2 * 512 * 1024**2 + 12 * 2 * 512**2 * 1024


def test_parameters_of_a_layer_and_of_a_gpt():
    assert memory.layer_parameters(8) == 12 * 64 + 13 * 8
    assert gpt_parameters(2, 8) == 2 * memory.layer_parameters(8) + 16
    assert gpt_parameters(2, 8, vocabulary=100, tokens=20) - gpt_parameters(2, 8) == 120 * 8


@pytest.mark.parametrize(
    ("parameters", "layers", "width"), [(7e9, 32, 4224), (70e9, 80, 8576), (175e9, 96, 12288)]
)
def test_the_width_of_a_model_follows_from_its_parameters_and_layers(parameters, layers, width):
    assert memory.gpt_width(parameters, layers) == width
    assert gpt_parameters(layers, width) == pytest.approx(parameters, rel=0.03)


@pytest.mark.parametrize("recompute", memory.RECOMPUTE)
def test_rates_scale_to_what_the_formulas_say(recompute):
    found = Rates.formula().model(7e9, 32, 2048, 3, recompute)
    width = memory.gpt_width(7e9, 32)
    layer = activation_bytes(3, 2048, width, width // 128, recompute=recompute)
    assert found == {**model_state_bytes(7 * BILLION), "activation": 32 * layer}


def test_rates_measured_on_one_shape_give_that_shape_back():
    kept = {"none": 34 * 64 + 5 * 2 * 16 * 2, "selective": 34 * 64, "full": 2 * 64}
    rates = Rates.measured(
        {"parameter": 20, "moment": 80, "other": 7}, 10, kept, batch=2, tokens=4, width=8, heads=2
    )
    assert rates == Rates({"parameter": 2.0, "moment": 8.0}, 34.0, 5.0, 2.0)


def test_a_table_of_bytes_names_kinds_and_total_and_leaves_out_what_is_not_there():
    held = Held(parameter=2000, moment=8000)
    assert repr(held) == (
        "parameter           2,000 bytes\nmoment              8,000 bytes\ntotal              10,000 bytes"
    )
    assert held.total == 10_000
    assert held.per(1000) == {"parameter": 2.0, "moment": 8.0}


def test_a_count_on_a_gpu_shows_the_allocator_s_figures_and_travels():
    held = Held(parameter=2000)
    held.allocated, held.peak = 2048, 4096
    again = pickle.loads(pickle.dumps(held))
    assert (again, again.peak) == (held, 4096)
    assert "its peak            4,096 bytes" in repr(again)


def test_a_peak_knows_its_highest_and_its_last_point_and_its_moments():
    seen = Peak([0, 40, 90])
    seen.mark("backward")
    seen.curve += [120, 10]
    assert (seen.bytes, seen.left, seen.marks) == (120, 10, [(2, "backward")])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: model_state_bytes(0), "num_parameters = 0 must be at least 1"),
        (lambda: model_state_bytes(-5), "num_parameters = -5"),
        (lambda: activation_bytes(0, 1, 1, 1), "batch = 0 must be at least 1"),
        (lambda: activation_bytes(1, 1, 1, 1, tp=0), "tp = 0"),
        (
            lambda: activation_bytes(1, 1, 1, 1, recompute="some"),
            "'some' is unknown: use 'none', 'selective', 'full'",
        ),
        (lambda: layer_flops(1, -4, 1), "tokens = -4"),
        (lambda: memory.layer_parameters(0), "width = 0"),
        (lambda: gpt_parameters(1, 1, vocabulary=-1), "vocabulary = -1 must be at least 0"),
        (lambda: memory.gpt_width(1e9, 0), "layers = 0"),
        (lambda: memory.gpt_width(float("nan"), 1), "num_parameters = nan"),
        (lambda: Rates({"parameter": -2.0}), "parameter = -2.0"),
        (lambda: Rates.formula().model(1e9, 1, 0, 1), "tokens = 0"),
        (lambda: Rates.formula().model(1e9, 1, 1, 1, "half"), "'half'"),
        (
            lambda: Rates.measured({}, 1, {"none": 1}, batch=1, tokens=1, width=1, heads=1),
            "for full, selective",
        ),
        (lambda: Held(parameter=1).per(0), "bytes per 0: give a number above 0"),
    ],
)
def test_sizes_that_cannot_be_meant_are_refused_with_their_number(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_an_unknown_name_is_told_with_the_known_ones():
    with pytest.raises(AttributeError, match="no 'hold'; it has .*held, layer_flops"):
        _ = memory.hold


def test_formulas_and_counts_need_no_torch():
    code = (
        "import pickle, sys; from tpcourse import memory; memory.Rates.formula(); memory.Peak(); memory.Saved()\n"
        "pickle.loads(pickle.dumps(memory.Held(parameter=1))); memory.activation_bytes(1, 1, 1, 1)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
