"""What `auto` picks: by predicted times, and never a form that the prediction makes slower than serial."""

from __future__ import annotations

import pytest
import torch
from linear_cases import draw
from rig import run_ranks

from tpcourse.overlap import gather_product
from tpcourse.overlap.choice import LAUNCH_S, SPLIT, predicted_s, times_of
from tpcourse.overlap.tokens import Tokens

SHAPES = {  # M, K, N of figures.md -> measured: product, serial, and the fastest form of the two kinds
    ("gather", 8192, 8192, 14336): (2.397, 2.962, "peer"),
    ("gather", 8192, 4096, 7168): (0.711, 0.862, "peer"),
    ("gather", 16384, 8192, 4096): (1.415, 1.986, "peer"),
    ("gather", 4096, 4096, 4096): (0.197, 0.306, "peer"),
    ("gather", 256, 512, 1024): (None, None, "serial"),
    ("scatter", 8192, 14336, 8192): (2.566, 3.097, "peer"),
    ("scatter", 16384, 4096, 8192): (1.632, 2.063, "peer"),
    ("scatter", 4096, 4096, 4096): (0.210, 0.306, "peer"),
    ("scatter", 256, 1024, 512): (None, None, "serial"),
}


def predicted_ms(kind: str, m: int, k: int, n: int, form: str) -> float:
    """For two ranks, in bfloat16."""
    return 1e3 * predicted_s(form, *times_of(kind, form, *_inputs(m, k, n)), 2)


def communication_s(kind: str, m: int, k: int, n: int) -> float:
    """Of one collective on its own."""
    return times_of(kind, "serial", *_inputs(m, k, n)).communication_s


def _inputs(m: int, k: int, n: int):
    x, weight = (torch.empty(*shape, device="meta", dtype=torch.bfloat16) for shape in ((m, k), (n, k)))
    return x, weight, Tokens(None, 0, 0, [m // 2] * 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_prediction_is_near_what_was_measured_and_picks_the_form_that_was_fastest(shape):
    product_ms, serial_ms, fastest = SHAPES[shape]
    times = {form: predicted_ms(*shape, form) for form in LAUNCH_S}
    assert min(times, key=times.__getitem__) == fastest, times
    if serial_ms is not None:
        alone_ms = predicted_ms(*shape, "serial") - 1e3 * communication_s(*shape)
        assert times["serial"] == pytest.approx(serial_ms, rel=0.2)
        assert alone_ms == pytest.approx(product_ms, rel=0.2)


def test_what_cannot_be_hidden_is_predicted_as_exposed():
    product_s = 1e-3
    hidden, twice = (predicted_s("peer", product_s, share * product_s, 2) for share in (0.5, 2.0))
    assert hidden == pytest.approx(SPLIT * product_s + LAUNCH_S["peer"])
    assert twice - hidden == pytest.approx(1.5 * product_s)


def _on_cpu(rank, group):
    x, weight = draw(0, 2, 6, 5), draw(1, 4, 5)
    return torch.equal(gather_product(x, weight, tp=group), gather_product(x, weight, tp=group, form="serial"))


def test_on_a_cpu_auto_is_serial():
    assert run_ranks(_on_cpu, 2) == [True, True]
