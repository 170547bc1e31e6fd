"""What `auto` picks: by predicted times, and never a form that the prediction makes slower than serial."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from linear_cases import draw
from rig import run_ranks

from tpcourse.draw import recorded
from tpcourse.overlap import gather_product
from tpcourse.overlap.choice import CHOICES, LAUNCH_S, PART_S, SPLIT, Size, fastest, predicted_s, times_of

VARIANTS = {
    ("gather", "peer", 2): "peer, 2 pieces", ("scatter", "peer", 1): "peer, 1 piece",
    ("scatter", "peer", 4): "peer, 4 pieces",
}  # fmt: skip
"""Kind, form and pieces -> variant of the bench, where it is not the form's name."""
NOISE = 1.08
"""By so much the same form differs from itself in the recorded run, under its own name and as `auto`."""


def size_of(kind: str, shape, p: int = 2) -> Size:
    return Size(kind, *shape, torch.bfloat16, p)


def predicted_ms(kind: str, shape, p: int = 2):
    """Form and pieces -> milliseconds."""
    return {choice: 1e3 * predicted_s(size_of(kind, shape, p), *choice) for choice in CHOICES[kind]}


def measured(bench: str = "overlap", figure: str = "ms"):
    """Kind, shape and number of GPUs -> variant -> a figure of the recorded run on GPUs."""
    kinds, found = {"gather_product": "gather", "product_scatter": "scatter"}, {}
    for figures in recorded(bench).values():
        for row in figures["overlap" if bench == "scale" else "rows"] if figures["backend"] == "nccl" else []:
            if kind := kinds.get(row["kind"]):
                found.setdefault((kind, tuple(row["shape"]), row.get("p", 2)), {})[row["variant"]] = row[figure]
    return found


@pytest.mark.skipif(not measured(), reason="no run on GPUs is recorded")
def test_what_is_predicted_to_be_the_fastest_was_at_most_8_percent_slower_than_the_fastest_when_measured():
    for (kind, shape, _), ms in measured().items():
        times = predicted_ms(kind, shape)
        form, pieces = fastest(size_of(kind, shape), True, is_captured=True)  # as most of the best were measured
        candidates = {VARIANTS.get((kind, *choice), choice[0]) for choice in times}
        best = min(ms[name] for name in candidates if name in ms)
        assert ms[VARIANTS.get((kind, form, pieces), form)] <= NOISE * best, (kind, shape, form, pieces)
        assert times["serial", None] == pytest.approx(ms["serial"], rel=0.25)


@pytest.mark.skipif(not measured(), reason="no run on GPUs is recorded")
@pytest.mark.parametrize(("way", "is_captured"), [("back to back", False), ("back to back, graph", True)])
def test_where_no_memory_is_shared_auto_is_not_slower_than_one_after_the_other_but_for_noise(way, is_captured):
    chosen = set()
    for (kind, shape, _), ms in measured(figure="ms_by_way").items():
        form, _ = fastest(size_of(kind, shape), False, is_captured)
        assert ms[form][way] <= NOISE * ms["serial"][way], (kind, shape, form)
        chosen.add((kind, form))
    assert chosen == {("gather", "serial"), ("gather", "ring"), ("scatter", "serial")}


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_large_products_hide_their_communication_in_shared_memory_and_tiny_ones_do_not(kind):
    large, tiny = predicted_ms(kind, (8192, 8192, 8192)), predicted_ms(kind, (256, 512, 512))
    assert min(large, key=large.__getitem__)[0] == "peer"
    assert min(tiny, key=tiny.__getitem__) == ("serial", None)


def test_where_the_cpu_launches_longer_than_the_gpu_computes_only_a_captured_graph_hides():
    narrow, wide = size_of("gather", (8192, 512, 1024)), size_of("gather", (8192, 8192, 14336))
    assert fastest(narrow, True) == ("serial", None)
    assert fastest(narrow, True, is_captured=True)[0] == "peer"
    assert fastest(wide, True) == fastest(wide, True, is_captured=True) == ("peer", None)


def test_what_cannot_be_hidden_is_predicted_as_exposed():
    """A narrow product: each of its two parts takes less time than the copy."""
    size = size_of("gather", (8192, 8192, 64))
    product_s, copy_s = times_of(size, "peer")
    seconds = predicted_s(size, "peer", 1)
    assert copy_s > product_s
    assert seconds == pytest.approx(LAUNCH_S["peer"] + copy_s + SPLIT * product_s / 2 + PART_S)


def test_more_pieces_begin_earlier_with_what_has_come_and_cost_their_launches():
    short, long = (predicted_ms("gather", (8192, k, n)) for k, n in ((8192, 512), (8192, 14336)))
    assert short["peer", 2] < short["peer", None] and long["peer", 2] > long["peer", None]


def test_a_sum_in_one_piece_is_for_small_products_and_in_more_for_those_that_communicate_long():
    small, long = predicted_ms("scatter", (2048, 4096, 4096)), predicted_ms("scatter", (16384, 1024, 8192))
    assert small["peer", 1] < small["peer", 4] and long["peer", 4] < long["peer", 1]


def test_without_gpus_that_reach_each_other_peer_is_never_picked():
    for kind, shape in product(CHOICES, ((16384, 8192, 8192), (4096, 4096, 4096), (16, 16, 16), (0, 4, 4))):
        form, _ = fastest(size_of(kind, shape, 4), False)
        assert form in ("serial", "ring")


def _on_cpu(rank, group):
    x, weight = draw(0, 2, 6, 5), draw(1, 4, 5)
    return torch.equal(gather_product(x, weight, tp=group), gather_product(x, weight, tp=group, form="serial"))


def test_on_a_cpu_auto_is_serial():
    assert run_ranks(_on_cpu, 2) == [True, True]
