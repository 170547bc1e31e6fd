"""Fitting alpha and beta, predicting with them, and the recorded run."""

from __future__ import annotations

import json
import random

import pytest

from tpcourse import costs
from tpcourse.costs import Fit, Measurement
from tpcourse.costs.fitting import least_squares

SIZES = [4096 * 4**step for step in range(7)]


def exact(op="all_reduce", alpha=2e-4, beta=1e-9, p=4, sizes=SIZES):
    return [Measurement(op, p, n, alpha + beta * n) for n in sizes]


def scattered(by, op="all_reduce", alpha=2e-4, beta=1e-9, seed=1):
    noise = random.Random(seed)
    return [Measurement(op, 4, m.num_bytes, m.seconds * noise.uniform(1 - by, 1 + by)) for m in exact(op, alpha, beta)]


def squares(alpha, beta, points):
    return sum(((alpha + beta * m.num_bytes) / m.seconds - 1) ** 2 for m in points)


@pytest.mark.parametrize(("alpha", "beta"), [(2e-4, 1e-9), (3e-6, 2e-12), (5e-2, 1e-10), (0, 1e-9), (1e-5, 0)])
def test_a_line_through_exact_points_is_found_exactly(alpha, beta):
    line = costs.fit(exact(alpha=alpha, beta=beta))
    assert line.alpha_s == pytest.approx(alpha, rel=1e-6, abs=1e-12)
    assert line.beta_s_per_byte == pytest.approx(beta, rel=1e-6, abs=1e-18)
    assert line.error < 1e-9
    assert (line.smallest, line.largest, line.op, line.p) == (SIZES[0], SIZES[-1], "all_reduce", 4)


@pytest.mark.parametrize("seed", range(5))
def test_no_line_nearby_has_smaller_relative_errors(seed):
    points = scattered(0.3, seed=seed)
    line = costs.fit(points)
    least = squares(line.alpha_s, line.beta_s_per_byte, points)
    for up in (0.99, 1.01):
        assert squares(up * line.alpha_s, line.beta_s_per_byte, points) > least
        assert squares(line.alpha_s, up * line.beta_s_per_byte, points) > least


def test_every_size_counts_alike_so_one_slow_large_array_does_not_spoil_the_small_ones():
    points = exact()
    points[-1] = Measurement("all_reduce", 4, SIZES[-1], 1.5 * points[-1].seconds)
    line = costs.fit(points)
    assert line.seconds(SIZES[0]) == pytest.approx(points[0].seconds, rel=0.05)


@pytest.mark.parametrize("times", [[1e-6, 8e-3, 64e-3], [5e-3, 4e-3, 1e-3]])
def test_neither_number_is_ever_negative(times):
    line = costs.fit(Measurement("all_reduce", 2, n, t) for n, t in zip((10**4, 10**6, 4 * 10**6), times, strict=True))
    assert line.alpha_s >= 0
    assert line.beta_s_per_byte >= 0
    assert line.alpha_s + line.beta_s_per_byte > 0


def test_each_operation_gets_its_own_line_and_predictions_come_from_it():
    fits = costs.fit_each([*exact(), *exact("all_gather", 1e-4, 5e-10)])
    assert list(fits) == ["all_reduce", "all_gather"]
    assert costs.predict(fits, "all_gather", 10_000) == pytest.approx(1e-4 + 5e-6)
    assert costs.predict(fits, "all_reduce", 10_000) == pytest.approx(2e-4 + 1e-5)


def test_errors_are_relative_to_what_was_measured():
    fits = {"all_reduce": Fit("all_reduce", 4, 1e-3, 0.0, 0.0, 1, 2)}
    points = [Measurement("all_reduce", 4, 8, t) for t in (1e-3, 2e-3, 0.5e-3)]
    assert costs.errors(fits, points) == pytest.approx([0, 0.5, 1])
    assert costs.median_error(fits, points) == pytest.approx(0.5)


def test_sizes_left_out_lie_between_sizes_that_are_fitted():
    points = [*exact(), *exact("all_gather")]
    fitted, left_out = costs.every_other(points)
    assert {m.num_bytes for m in fitted} == set(SIZES[::2])
    assert {m.num_bytes for m in left_out} == set(SIZES[1::2])
    assert len(fitted) + len(left_out) == len(points)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_the_link_of_a_fit_predicts_the_same_ring_at_another_number_of_ranks(op):
    link = costs.Link("true", 5e-6, 2e9)
    points = [Measurement(op, 4, n, costs.seconds(op, n, 4, link)) for n in SIZES]
    found = costs.fit(points).as_link()
    assert (found.alpha_s, found.bytes_per_s) == pytest.approx((5e-6, 2e9))
    assert costs.seconds(op, 1e6, 16, found) == pytest.approx(costs.seconds(op, 1e6, 16, link))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: costs.fit([]), "0 measurements at 0 different sizes: a line needs 2 sizes or more"),
        (lambda: costs.fit(exact(sizes=[8])), "1 measurements at 1 different sizes"),
        (lambda: costs.fit(exact(sizes=[8, 8, 8])), "3 measurements at 1 different sizes"),
        (lambda: costs.fit([*exact(), *exact("all_gather")]), "all_gather on 4 ranks, all_reduce on 4 ranks"),
        (lambda: costs.fit([*exact(), *exact(p=2)]), "all_reduce on 2 ranks, all_reduce on 4 ranks"),
        (lambda: costs.fit_each([]), "0 measurements"),
        (lambda: costs.fit(exact()).seconds(0), "num_bytes = 0"),
        (lambda: costs.fit(exact()).seconds(-1), "num_bytes = -1"),
        (lambda: costs.predict(costs.fit_each(exact()), "reduce", 8), "'reduce' was not fitted, only all_reduce"),
        (lambda: costs.median_error(costs.fit_each(exact()), []), "0 measurements to compare with"),
        (lambda: costs.fit(exact(p=1)).as_link(), "p = 1 ranks shows no link"),
        (lambda: costs.fit(exact()).as_link("star"), "no algorithm 'star'"),
    ],
)
def test_what_cannot_be_fitted_or_predicted_is_a_value_error_that_says_why(call, words):
    with pytest.raises(ValueError, match=".*") as caught:
        call()
    assert words in str(caught.value)


def test_rounding_does_no_harm_at_the_sizes_of_gpus():
    sizes = [2**20 * 2**step for step in range(11)]
    alpha, beta = least_squares(sizes, [5e-5 + n / 330e9 for n in sizes])
    assert (alpha, 1 / beta) == pytest.approx((5e-5, 330e9))


def write(folder, **more):
    points = [{"op": "all_reduce", "p": 2, "num_bytes": n, "seconds": 1e-5 + n / 3e11} for n in (2**22, 2**20)]
    figures = {"backend": "nccl", "p": 2, "measured": points, "unseen": points[:1], **more}
    machine = {"cards": ["NVIDIA H200", "NVIDIA H200"], "nccl": "2.28.9"}
    (folder / "collectives.json").write_text(json.dumps({"figures": figures, "machine": machine}))


def test_without_a_recording_there_is_none(tmp_path):
    assert costs.recorded(tmp_path) is None


def test_a_recording_is_read_with_its_machine_and_in_order_of_size(tmp_path):
    write(tmp_path)
    found = costs.recorded(tmp_path)
    assert found.machine == "2 x NVIDIA H200, NCCL 2.28.9"
    assert [m.num_bytes for m in found.measured] == [2**20, 2**22]
    assert len(found.unseen) == 1
    write(tmp_path, backend="gloo", p=4)
    assert costs.recorded(tmp_path).machine == "4 ranks on a CPU, gloo"
