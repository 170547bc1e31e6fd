"""Figures of costs: every measurement is a point, nothing overlaps, and controls redraw."""

from __future__ import annotations

import pytest
from test_draw_helpers import faults, marked

from tpcourse import costs, draw
from tpcourse.costs import Link, Measurement, Recording
from tpcourse.draw.cost_controls import HINT, WIRES, CostSliders, frame
from tpcourse.draw.cost_curves import seconds_text
from tpcourse.draw.palette import png

LINK = Link("test", 1e-4, 1e9)
OPS = ("all_reduce", "all_gather", "reduce_scatter")
SIZES = [4096 * 2**step for step in range(11)]
WIDGET = "application/vnd.jupyter.widget-view+json"


def measured(p=4, link=LINK, sizes=SIZES, ops=OPS):
    return [Measurement(op, p, n, 1.1 * costs.seconds(op, n, p, link)) for n in sizes for op in ops]


def places(ax, gid):
    return sorted(point for line in marked(ax, gid) for point in zip(*line.get_data(), strict=True))


def texts(ax):
    return " ".join(text.get_text() for text in [*ax.texts, *ax.get_legend().get_texts(), ax._left_title])


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.2, "3.2 s"), (0.001, "1 ms"), (5.3e-5, "53 µs"), (4e-9, "4 ns"), (1200, "1,200 s"), (0.99951e-3, "1 ms")],
)
def test_seconds_are_written_in_the_unit_that_fits(value, text):
    assert seconds_text(value) == text


def test_every_measurement_is_a_point_and_every_operation_has_its_line():
    fitted, left_out = costs.every_other(measured())
    fits = costs.fit_each(fitted)
    ax = draw.cost_fit(fitted, fits, left_out)
    assert places(ax, "measured") == sorted((m.num_bytes, m.seconds) for m in fitted)
    assert places(ax, "not fitted") == sorted((m.num_bytes, m.seconds) for m in left_out)
    assert len(marked(ax, "line")) == 3
    for line, fit in zip(marked(ax, "line"), fits.values(), strict=True):
        n, t = (row[7] for row in line.get_data())
        assert t == pytest.approx(fit.seconds(n))
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert faults(ax) == []


def test_a_recorded_run_is_drawn_beside_this_machine_s_and_named():
    gpus = measured(2, costs.LINKS["NVLink 4"], [2**20 * 2**step for step in range(11)])
    recording = Recording("2 x NVIDIA H200, NCCL 2.28.9", *map(tuple, costs.every_other(gpus)))
    mine = measured()
    alone, both = (draw.cost_fit(mine, costs.fit_each(mine), (), recorded) for recorded in (None, recording))
    assert len(places(both, "measured")) == len(places(alone, "measured")) + len(recording.measured)
    assert len(places(both, "not fitted")) == len(recording.unseen)
    assert "NVIDIA H200" in texts(both) and "recorded" not in texts(alone)
    assert faults(both) == []


def test_bandwidth_is_drawn_twice_and_they_differ_by_the_bus_factor():
    ax = draw.bandwidths(measured(8))
    for algorithm, bus in zip(places(ax, "algorithm"), places(ax, "bus"), strict=True):
        assert bus[1] / algorithm[1] == pytest.approx(1.75) or bus[1] / algorithm[1] == pytest.approx(0.875)
    assert faults(ax) == []


@pytest.mark.parametrize("p", [2, 3, 4, 8, 1024])
def test_every_algorithm_has_a_curve_and_the_crossing_is_marked_where_there_is_one(p):
    ax = draw.algorithm_times(p, LINK)
    assert len(marked(ax, "algorithm")) == 4
    crossing = costs.crossing(p, LINK)
    assert [line.get_xdata()[0] for line in marked(ax, "crossing")] == ([crossing] if crossing else [])
    assert faults(ax) == []


def test_measured_times_of_algorithms_are_points():
    times = {"ring": {4096: 7e-4, 1 << 20: 2e-3}, "tree": {4096: 5e-4}}
    ax = draw.algorithm_times(4, LINK, times)
    assert places(ax, "measured") == [(4096, 5e-4), (4096, 7e-4), (1 << 20, 2e-3)]
    assert "points are measured" in texts(ax)
    assert faults(ax) == []


def test_another_operation_has_its_own_algorithms_and_no_crossing_without_a_tree():
    ax = draw.algorithm_times(8, "PCIe 4", op="all_gather")
    assert len(marked(ax, "algorithm")) == 2
    assert marked(ax, "crossing") == []


def test_each_link_is_a_row_and_each_group_a_disc_that_is_filled_where_it_pays():
    ratios = {
        name: {p: costs.layer_ratio("Llama 3 70B", p, 989e12, link.bytes_per_s) for p in (2, 4, 8)}
        for name, link in costs.LINKS.items()
    }
    ax = draw.link_ratios(ratios, "Llama 3 70B")
    discs = marked(ax, "ratio")
    assert len(discs) == 3 * len(costs.LINKS)
    drawn = {(round(disc.get_ydata()[0]), disc.get_xdata()[0]): disc.get_markerfacecolor() for disc in discs}
    for row, by_ranks in enumerate(ratios.values()):
        assert all((drawn[row, r] != "#FFFFFF") == (r <= 1) for r in by_ranks.values())
    assert [text.get_text() for text in ax.texts] == ["2", "4", "8"] * len(costs.LINKS)
    assert faults(ax) == []


@pytest.mark.parametrize(("product_s", "gather_s", "p"), [(1e-3, 5e-5, 8), (1e-3, 9e-3, 8), (1e-6, 3e-2, 64)])
def test_bars_add_up_to_the_times_and_the_title_says_r(product_s, gather_s, p):
    ax = draw.product_bars(product_s, gather_s, p)
    solid = [bar for bar in ax.patches if bar.get_gid() == "compute"]
    hatched = [bar for bar in ax.patches if bar.get_gid() == "communication"]
    assert [bar.get_width() for bar in solid] == pytest.approx([product_s, product_s / p, product_s / p])
    assert all(bar.get_hatch() and bar.get_width() == pytest.approx(gather_s) for bar in hatched)
    assert f"r = {gather_s * p / product_s:.3g}" in ax._left_title.get_text()
    assert faults(ax) == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: draw.cost_fit([], {}), "0 measurements"),
        (lambda: draw.bandwidths([]), "0 measurements"),
        (lambda: draw.algorithm_times(1, LINK), "p = 1 ranks send nothing"),
        (lambda: draw.algorithm_times(4, "USB"), "no link is named 'USB'"),
        (lambda: draw.algorithm_times(4, LINK, op="sum"), "no operation is named 'sum'"),
        (lambda: draw.link_ratios({}), "0 links"),
        (lambda: draw.link_ratios({"a": {2: -1.0}}), "-1.0"),
        (lambda: draw.product_bars(0, 1, 2), "product_s = 0"),
        (lambda: draw.cost_sliders(p=3), "p = 3 is not on offer: choose one of 2, 4, 8"),
        (lambda: draw.cost_sliders(link="NVLink 5"), "'NVLink 5'"),
    ],
)
def test_what_cannot_be_drawn_is_a_value_error_with_the_numbers(call, words):
    with pytest.raises(ValueError, match=".*") as caught:
        call()
    assert words in str(caught.value)


@pytest.fixture
def shown(monkeypatch):
    """What display() was given, in order; updates come as ("update", object)."""
    outputs = []

    class Handle:
        def update(self, thing):
            outputs.append(("update", thing))

    def display(thing, **options):
        outputs.append(thing)
        return Handle() if options.get("display_id") else None

    monkeypatch.setattr("IPython.display.display", display)
    return outputs


def test_the_sliders_first_picture_is_an_ordinary_png_that_needs_no_widget_state(shown):
    assert draw.cost_sliders() is None
    controls, picture = shown
    assert controls["text/plain"] == HINT and WIDGET in controls
    data, _ = picture._repr_mimebundle_()
    assert data["image/png"][:4] == b"\x89PNG" and WIDGET not in data


def test_the_first_picture_is_the_same_on_every_run(shown):
    draw.cost_sliders()
    draw.cost_sliders()
    assert png(shown[1]) == png(shown[3])


@pytest.mark.parametrize(("control", "value"), [("p", 2), ("link", "10 Gb/s"), ("hidden", 1024), ("tokens", 64)])
def test_every_control_replaces_the_picture_by_one_that_names_its_value(shown, control, value):
    sliders = CostSliders(8, "NVLink 4", 28672, 4096)
    sliders.show()
    getattr(sliders, control).value = value
    word, picture = shown[-1]
    assert word == "update"
    assert (f"{value:,}" if isinstance(value, int) else value) in picture._left_title.get_text()
    assert png(picture) != png(shown[1])


@pytest.mark.parametrize("p", [2, 64])
@pytest.mark.parametrize("link", WIRES)
@pytest.mark.parametrize(("hidden", "tokens"), [(1024, 64), (57344, 16384)])
def test_no_text_overlaps_at_the_ends_of_the_controls(p, link, hidden, tokens):
    assert faults(frame(p, link, hidden, tokens)) == []
