"""Pictures of lesson 06: what is whole on a rank and what was cut, and the pair's time in times of the all-reduce's."""

import pytest
from matplotlib.colors import to_hex
from test_draw_helpers import faults, marked

from tpcourse import draw
from tpcourse.draw.palette import colour, tint
from tpcourse.memory.counts import Kept, Saved


def saved(*sizes, weights=()):
    storages = [Kept(size, (size,), "bfloat16") for size in sizes]
    return Saved(storages + [Kept(size, (size,), "bfloat16", is_parameter=True) for size in weights])


ONE = saved(400, 80, 1600, 200)
TP = saved(400, 80, 400, 200, weights=(9000,))
CUT = saved(100, 20, 400, 50)


def bench(backend="nccl", **more):
    ms = {"one device": 9.0, "ours": 4.0, "ours, tokens split": 5.0, "torch's": 6.0}
    row = {"tokens": 1000, "D": 10, "F": 40, "ms": ms}
    return {"block": [row, row | {"tokens": 10, "ms": ms | {"ours": 2.0}}], "backend": backend, "p": 2} | more


def fills(ax):
    return [to_hex(block.get_facecolor()) for block in marked(ax, "storage")]


def test_a_storage_as_large_as_on_one_device_is_dark_and_one_that_was_cut_is_pale():
    ax = draw.activations({"TP": (TP, ONE), "TP + SP": (CUT, ONE)}, unit=200, p=4)
    dark, pale = tint(colour(0), 1.0), tint(colour(0), 0.3)
    assert fills(ax)[4:] == [dark, dark, pale, dark, pale, pale, pale, pale]
    assert len(set(fills(ax)[:4])) == 1 and fills(ax)[0] not in (dark, pale)


def test_bars_are_in_units_begin_where_the_last_storage_ends_and_leave_weights_out():
    ax = draw.activations({"TP": (TP, ONE)}, unit=200, p=4)
    assert [b.get_width() for b in marked(ax, "storage")] == pytest.approx([2, 0.4, 8, 1, 2, 0.4, 2, 1])
    assert [b.get_x() for b in marked(ax, "storage")] == pytest.approx([0, 2, 2.4, 10.4, 0, 2, 2.4, 4.4])
    assert {"11.4", "5.4"} <= {text.get_text() for text in ax.texts}


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_the_mark_is_one_device_s_bytes_over_the_ranks_and_all_can_be_read(p):
    selective = saved(100, 20), saved(400, 80)
    pairs = {"TP": (TP, ONE), "TP + SP": (CUT, ONE), "TP + SP, selective recompute": selective}
    ax = draw.activations(pairs, unit=200, p=p)
    shares = [mark.get_xdata()[0] for mark in marked(ax, "share")]
    assert shares == pytest.approx([11.4 / p, 11.4 / p, 2.4 / p])
    assert faults(ax) == []


def test_a_curve_is_drawn_by_size_whatever_the_order_of_its_points():
    ax = draw.pair_ratio({"2 ranks": {4e6: 1.0, 1e3: 1.5}, "4 ranks": {1e3: 1.25}}, "a title")
    first, second = marked(ax, "curve")
    assert list(first.get_xdata()) == [1e3, 4e6] and list(first.get_ydata()) == [1.5, 1.0]
    assert list(second.get_ydata()) == [1.25] and len(marked(ax, "equal")) == 1
    assert faults(ax) == []


@pytest.mark.parametrize("number", [1, 5])
def test_curves_differ_in_mark_and_shade_and_all_can_be_read(number):
    ax = draw.pair_ratio({f"{k} ranks of a machine": {1e3: 1 + k, 2e6: 1.0} for k in range(number)})
    looks = {(curve.get_marker(), curve.get_color()) for curve in marked(ax, "curve")}
    assert len(looks) == number and faults(ax) == []


def test_a_recorded_block_is_a_curve_by_the_bytes_of_its_activations():
    found = draw.recorded_pairs({"2 x H200": bench(), "2 ranks on a CPU": bench("gloo")})
    assert found == {"2 x H200": {20_000: 1.25, 200: 2.5}, "2 ranks on a CPU": {40_000: 1.25, 400: 2.5}}
    assert draw.recorded_pairs({}) == {}


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (lambda: draw.activations({}, unit=1, p=2), "0 pairs"),
        (lambda: draw.activations({"TP": (TP, ONE)}, unit=0, p=2), "unit = 0"),
        (lambda: draw.activations({"TP": (TP, saved(1))}, unit=1, p=2), "TP: 4 storages on a rank and 1 on one device"),
        (lambda: draw.pair_ratio({}), "0 curves"),
        (lambda: draw.pair_ratio({"a": {}}), r"1 curves of \[0\] points"),
        (lambda: draw.pair_ratio({"a": {1e3: 0.0}}), "all above 0"),
        (lambda: draw.pair_ratio({str(k): {1e3: 1.0} for k in range(6)}), "6 curves"),
    ],
)
def test_bad_input_is_answered_with_the_numbers_and_the_fix(picture, words):
    with pytest.raises(ValueError, match=words):
        picture()
