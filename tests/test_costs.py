"""Links, formulas, products and buckets: right numbers, and a sentence for every wrong one."""

from __future__ import annotations

import math

import pytest

from tpcourse import costs
from tpcourse.costs import LINKS, Link, Measurement

LINE = Link("test", 1e-5, 1e9)


def test_links_are_the_named_ones_from_fast_to_slow_each_with_a_source():
    assert list(LINKS) == ["NVLink 4", "PCIe 5", "PCIe 4", "400 Gb/s", "100 Gb/s", "10 Gb/s", "loopback"]
    wires = [link.bytes_per_s for name, link in LINKS.items() if name not in ("loopback", "400 Gb/s")]
    assert wires == sorted(wires, reverse=True)
    assert all(link.source and link.alpha_s > 0 for link in LINKS.values())


def test_bandwidths_of_links_follow_from_their_data_sheets():
    assert LINKS["NVLink 4"].bytes_per_s == 900e9 / 2
    assert LINKS["PCIe 5"].bytes_per_s == pytest.approx(32e9 * 16 * 128 / 130 / 8, rel=1e-3)
    assert LINKS["PCIe 4"].bytes_per_s == LINKS["PCIe 5"].bytes_per_s / 2
    assert [LINKS[f"{g} Gb/s"].bytes_per_s for g in (400, 100, 10)] == [400e9 / 8, 100e9 / 8, 10e9 / 8]


def test_a_message_of_half_size_takes_twice_alpha():
    n = costs.half_size(LINE)
    assert LINE.alpha_s + n * LINE.beta_s_per_byte == pytest.approx(2 * LINE.alpha_s)
    assert costs.half_size("NVLink 4") == pytest.approx(3.4e-6 * 450e9)


@pytest.mark.parametrize("p", [2, 3, 4, 7, 8, 1000])
def test_ring_tree_and_naive_cost_what_the_textbook_says(p):
    a, b, n, d = LINE.alpha_s, LINE.beta_s_per_byte, 5e6, math.ceil(math.log2(p))
    said = {
        ("all_reduce", "ring"): 2 * (p - 1) * a + 2 * (p - 1) / p * n * b,
        ("all_gather", "ring"): (p - 1) * a + (p - 1) / p * n * b,
        ("reduce_scatter", "ring"): (p - 1) * a + (p - 1) / p * n * b,
        ("broadcast", "tree"): d * (a + n * b),
        ("all_reduce", "tree"): 2 * d * (a + n * b),
        ("all_reduce", "naive"): 2 * (p - 1) * (a + n * b),
        ("all_to_all", "pairwise"): (p - 1) * a + (p - 1) / p * n * b,
    }
    for (op, algorithm), expected in said.items():
        assert costs.seconds(op, n, p, LINE, algorithm) == pytest.approx(expected), (op, algorithm)


@pytest.mark.parametrize("p", [2, 4, 8, 64])
def test_halving_and_doubling_sends_a_ring_s_bytes_in_log2_p_steps_where_p_is_a_power_of_two(p):
    a, b, n = LINE.alpha_s, LINE.beta_s_per_byte, 5e6
    for op, times in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        expected = times * (math.log2(p) * a + (p - 1) / p * n * b)
        assert costs.seconds(op, n, p, LINE, "halving_doubling") == pytest.approx(expected)


@pytest.mark.parametrize(("op", "algorithm"), costs.ALGORITHMS)
def test_one_rank_alone_takes_no_time(op, algorithm):
    assert costs.seconds(op, 1e6, 1, LINE, algorithm) == 0


@pytest.mark.parametrize("p", [4, 5, 8, 100, 1024])
def test_at_the_crossing_ring_and_tree_take_equally_long_and_beyond_it_the_ring_is_faster(p):
    n = costs.crossing(p, LINE)
    ring, tree = ([costs.seconds("all_reduce", x * n, p, LINE, way) for x in (0.5, 1, 2)] for way in ("ring", "tree"))
    assert ring[1] == pytest.approx(tree[1])
    assert ring[0] > tree[0]
    assert ring[2] < tree[2]


@pytest.mark.parametrize("p", [2, 3])
def test_on_two_and_three_ranks_a_tree_is_never_faster(p):
    assert costs.crossing(p, LINE) == 0
    assert costs.seconds("all_reduce", 1, p, LINE, "ring") <= costs.seconds("all_reduce", 1, p, LINE, "tree")


@pytest.mark.parametrize(("op", "factor"), [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875),
                                            ("all_to_all", 0.875), ("broadcast", 1), ("reduce", 1)])  # fmt: skip
def test_bus_bandwidth_is_algorithm_bandwidth_times_the_factor_of_nccl_tests(op, factor):
    m = Measurement(op, 8, 1_000_000, 1e-3)
    assert m.algorithm_bytes_per_s == pytest.approx(1e9)
    assert m.bus_bytes_per_s == pytest.approx(factor * 1e9)


@pytest.mark.parametrize("p", [2, 3, 8, 64])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_the_bus_bandwidth_of_a_long_ring_is_the_link_s_for_every_p(op, p):
    n = 10**12
    m = Measurement(op, p, n, costs.seconds(op, n, p, LINE))
    assert m.bus_bytes_per_s == pytest.approx(LINE.bytes_per_s, rel=1e-2)


@pytest.mark.parametrize("tokens", [10, 1000])
@pytest.mark.parametrize("inner", [64, 4096])
def test_in_the_overlap_ratio_tokens_and_inner_width_cancel(tokens, inner):
    p, columns, flops, speed = 8, 7168, 900e12, 300e9
    gather_s = (p - 1) / p * 2 * tokens * inner / speed
    product_s = costs.product_flops(tokens, inner, columns // p) / flops
    assert costs.overlap_ratio(p, columns // p, flops, speed) == pytest.approx(gather_s / product_s)
    assert costs.overlap_ratio(p, columns // p, flops, speed) == pytest.approx(flops * (p - 1) / (columns * speed))


@pytest.mark.parametrize(("ratio", "gain"), [(0, 1), (0.5, 1.5), (1, 2), (3, 4 / 3)])
def test_overlap_gains_at_most_a_factor_of_two_and_that_at_r_1(ratio, gain):
    assert costs.best_speedup(ratio) == pytest.approx(gain)


@pytest.mark.parametrize("model", costs.MODELS)
@pytest.mark.parametrize("p", [2, 8])
def test_without_alpha_a_layer_s_ratio_does_not_depend_on_tokens_and_is_layer_ratio(model, p):
    link = Link("no alpha", 0, 50e9)
    for tokens in (1, 4096):
        times = costs.layer_times(model, tokens, p, 500e12, link)
        assert times.ratio == pytest.approx(costs.layer_ratio(model, p, 500e12, 50e9))


def test_with_alpha_a_small_batch_communicates_the_longer_part():
    few, many = (costs.layer_times("Llama 3 8B", tokens, 8, 989e12, "NVLink 4").ratio for tokens in (64, 16384))
    assert few > 5 * many


def test_a_layer_has_the_flops_of_its_parameters_and_four_collectives():
    model = costs.MODELS["Llama 3 8B"]
    weights = model.D * (model.H * model.K * 2 + 2 * model.kv_heads * model.K + 3 * model.F)
    times = costs.layer_times(model, 1000, 2, 1.0, LINE)
    assert times.product_s == pytest.approx(2 * 1000 * weights / 2)
    assert times.communication_s == pytest.approx(4 * costs.seconds("all_gather", 2 * 1000 * model.D, 2, LINE))
    embeddings = 2 * 128256 * model.D
    assert model.L * weights + embeddings == pytest.approx(8.0e9, rel=0.01)


def test_the_largest_group_that_pays_is_the_largest_with_r_at_most_1():
    for model in costs.MODELS:
        for link in LINKS.values():
            best = costs.largest_tp(model, 989e12, link.bytes_per_s)
            ratios = {p: costs.layer_ratio(model, p, 989e12, link.bytes_per_s) for p in (2, 4, 8)}
            assert all((r <= 1) == (p <= best) for p, r in ratios.items())


def simulated_end(gradient, bucket, backward, line):
    """The slow way: one bucket after another."""
    sent, free = 0.0, 0.0
    while sent < gradient * (1 - 1e-9):
        size = min(bucket, gradient - sent)
        sent += size
        free = max(free, backward * sent / gradient) + line.alpha_s + line.beta_s_per_byte * size
    return free


@pytest.mark.parametrize("bucket", [1e9, 5e8, 3e8, 7e7, 25e6, 1.3e6])
@pytest.mark.parametrize("line", [Link("fast", 1e-4, 1e11), Link("slow", 5e-4, 5e9)])
def test_the_end_of_the_last_bucket_is_what_a_simulation_gives_also_with_a_smaller_last_bucket(bucket, line):
    assert costs.finish_s(1e9, bucket, 0.1, line) == pytest.approx(simulated_end(1e9, bucket, 0.1, line))


@pytest.mark.parametrize("line", [Link("fast", 1e-4, 1e11), Link("slow", 5e-4, 5e9), Link("no alpha", 0, 1e9),
                                  Link("dear", 1.0, 1e9)])  # fmt: skip
def test_no_number_of_buckets_ends_before_the_best(line):
    best = costs.finish_s(1e9, costs.best_bucket(1e9, 0.1, line), 0.1, line)
    assert all(best <= costs.finish_s(1e9, 1e9 / k, 0.1, line) * (1 + 1e-9) for k in range(1, 3000))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: costs.seconds("all_reduce", 0, 4, LINE), "num_bytes = 0 must be a number above 0: give for example"),
        (lambda: costs.seconds("all_reduce", -8, 4, LINE), "num_bytes = -8 must"),
        (lambda: costs.seconds("all_reduce", math.nan, 4, LINE), "num_bytes = nan must"),
        (lambda: costs.seconds("all_reduce", 8, 0, LINE), "p = 0 is not a number of ranks: give a whole number"),
        (lambda: costs.seconds("all_reduce", 8, 2.5, LINE), "p = 2.5 is not"),
        (lambda: costs.seconds("all_reduce", 8, 2, "NVLink 5"), "'NVLink 5'; there are NVLink 4, PCIe 5"),
        (lambda: costs.seconds("all_reduce", 8, 2, None), "no link is named None"),
        (lambda: costs.seconds("all_reduce", 8, 2, LINE, "star"), "has no algorithm 'star'; it has naive, tree, ring"),
        (lambda: costs.seconds("sum", 8, 2, LINE), "'sum'; there are broadcast, reduce"),
        (lambda: costs.crossing(1, LINE), "p = 1 ranks: ring carries 0 n bytes"),
        (lambda: Link("x", -1e-6, 1e9), "alpha_s of x = -1e-06 must be a number of 0 or more"),
        (lambda: Link("x", 1e-6, 0), "bytes_per_s of x = 0 must"),
        (lambda: Measurement("all_reduce", 2, 0, 1e-3), "num_bytes = 0"),
        (lambda: Measurement("all_reduce", 2, 8, 0.0), "seconds = 0.0"),
        (lambda: Measurement("barrier", 2, 8, 1e-3), "'barrier'; there are all_reduce"),
        (lambda: costs.overlap_ratio(2, 0, 1e12, 1e9), "local = 0"),
        (lambda: costs.overlap_ratio(0, 8, 1e12, 1e9), "p = 0"),
        (lambda: costs.product_flops(8, -1, 8), "k = -1"),
        (lambda: costs.best_speedup(-0.1), "ratio = -0.1"),
        (lambda: costs.layer_ratio("GPT 2", 2, 1e12, 1e9), "'GPT 2'; there are Llama 3 8B"),
        (lambda: costs.layer_times("Llama 3 8B", 0, 2, 1e12, LINE), "tokens = 0"),
        (lambda: costs.finish_s(1e9, 0, 0.1, LINE), "bucket_bytes = 0 must"),
        (lambda: costs.finish_s(1e9, 2e9, 0.1, LINE), "bucket_bytes = 2e+09 is more than gradient_bytes = 1e+09"),
        (lambda: costs.best_bucket(1e9, 0, LINE), "backward_s = 0"),
    ],
)  # fmt: skip
def test_bad_input_is_a_value_error_that_quotes_the_number_and_says_what_to_give(call, words):
    with pytest.raises(ValueError, match=".*") as caught:
        call()
    assert words in str(caught.value)


def test_costs_need_no_torch():
    import subprocess
    import sys

    code = "import sys, tpcourse.costs; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
