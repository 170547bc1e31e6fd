"""E by shape, where overlap loses, and four panels of a training: what is drawn is what was recorded."""

from __future__ import annotations

import pytest
from test_draw_helpers import drawn, faults, marked

from tpcourse import draw
from tpcourse.draw.hiding import LOOKS, NONE

BIG, SMALL = [16384, 8192, 4096], [4096, 4096, 4096]


def row(shape, variant, ms, hidden, kind="gather_product"):
    by_way = {"back to back": hidden, "one at a time": 0.5}
    return {"kind": kind, "shape": shape, "variant": variant, "ms": ms, "hidden": hidden, "hidden_by_way": by_way}


ROWS = [
    row(BIG, "product", 1.4, 1.0), row(BIG, "product, [K, N]", 1.5, 0.8), row(BIG, "NCCL + cuBLAS", 2.0, 0.0),
    row(BIG, "serial", 2.1, -0.2), row(BIG, "ring", 1.9, 0.2), row(BIG, "peer", 1.5, 0.8),
    row(BIG, "popular", 2.2, -0.3), row(BIG, "torch's fused", 1.6, 0.7), row(BIG, "auto", 1.5, 0.8),
    row(SMALL, "product", 0.2, 1.0), row(SMALL, "NCCL + cuBLAS", 0.3, 0.0), row(SMALL, "ring", 0.29, 0.1),
    row(SMALL, "peer", 0.2, 1.0), row(SMALL, "popular", 0.4, -1.0), row(SMALL, "torch's fused", 0.47, -1.7),
    row(SMALL, "auto", 0.2, 1.0),
]  # fmt: skip
SPANS = [[0, "compute", "product", 0.0, 0.002], [0, "communication", "AllGather", 0.0, 0.001]]
FIGURES = {
    "backend": "nccl", "p": 2, "rows": [*ROWS, row(BIG, "ring", 9.0, 0.0, kind="product_scatter")],
    "timelines": [{"kind": "gather_product", "shape": BIG, "variant": "peer", "spans": SPANS}],
}  # fmt: skip
RECORDED = {"2 x NVIDIA H200, NCCL 2.28.9": FIGURES}


def xs(ax, variant):
    return [float(line.get_xdata()[0]) for line in marked(ax, variant)]


def test_e_by_shape_has_a_mark_for_each_variant_at_its_e():
    ax = draw.hidden_by_shape(*draw.recorded_overlap("gather_product", RECORDED))
    assert {name: xs(ax, name) for name in ("ring", "peer", "popular")} == {
        "ring": [0.2, 0.1], "peer": [0.8, 1.0], "popular": [-0.3, -1.0],
    }  # fmt: skip
    assert xs(ax, "torch's fused") == [0.7, -1.0] and [text.get_text() for text in ax.texts] == ["-1.7"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["16,384 x 8,192 x 4,096", "4,096 x 4,096 x 4,096"]
    assert ax.get_title(loc="left") == "gather_product, 2 x NVIDIA H200, NCCL 2.28.9"
    drawn_names = {text.get_text() for text in ax.get_legend().get_texts()}
    assert drawn_names == {"ring", "peer", "auto", "popular", "torch's fused"} <= set(LOOKS)
    assert faults(ax) == []


def test_where_overlap_loses_is_right_of_one_and_the_bar_ends_at_the_product_alone():
    ax = draw.overlap_times(ROWS)
    assert xs(ax, "popular") == pytest.approx([1.1, 0.4 / 0.3]) and xs(ax, "peer") == pytest.approx([0.75, 0.2 / 0.3])
    bars = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in marked(ax, "gain")]
    assert bars == [pytest.approx((0.7, 1.0)), pytest.approx((0.2 / 0.3, 1.0))]
    (loses,) = marked(ax, "loses")
    assert loses.get_x() == 1 and faults(ax) == []
    assert ax.get_xlim()[1] > max(xs(ax, "torch's fused"))


def test_a_shape_without_its_product_cannot_be_compared():
    with pytest.raises(ValueError, match="has only ring, NCCL.*its product"):
        draw.overlap_times([row(BIG, "ring", 1.0, 0.5), row(BIG, "NCCL + cuBLAS", 2.0, 0.0)])


def test_a_layers_rows_are_drawn_too():
    rows = [row([8, 4, 2], name, ms, e, "mlp") for name, ms, e in (
        ("products", 1.0, 1.0), ("one after the other", 2.0, 0.0), ("peer", 1.1, 0.9), ("parallelize_module", 1.8, 0.2),
    )]  # fmt: skip
    assert xs(draw.overlap_times(rows), "peer") == [pytest.approx(0.55)]
    assert xs(draw.hidden_by_shape(rows), "parallelize_module") == [0.2]


@pytest.mark.parametrize("recordings", [{}, {"4 ranks on a CPU": FIGURES | {"backend": "gloo"}}])
def test_without_a_run_on_gpus_pictures_are_a_title_that_says_so(recordings):
    rows, title = draw.recorded_overlap("gather_product", recordings)
    assert rows == [] and title == NONE
    for picture in (draw.hidden_by_shape, draw.overlap_times):
        ax = picture(rows, title)
        assert not ax.axison and ax.get_title(loc="left") == NONE
        drawn(ax)
    assert draw.recorded_spans("gather_product", "peer", recordings) == ([], None)
    assert draw.recorded_profile(recordings={})[0] == {}


def test_a_recorded_timeline_comes_with_its_e_and_is_drawn():
    spans, E = draw.recorded_spans("gather_product", "peer", RECORDED)
    assert (spans, E) == (SPANS, 0.8)
    assert (
        draw.timeline(spans, hidden=E)
        .get_title(loc="left")
        .endswith("under computing: 100 %; hidden, by wall time: E = 0.80")
    )
    assert draw.recorded_spans("gather_product", "ring", RECORDED) == ([], None)


def modes(**more):
    names = ("one device", "TP", "TP + SP", "TP + SP + overlap")
    return {
        name: {"losses": [5.0, 4.0, 3.5], "norms": [2.0, 1.0, 0.8], "ms": 80.0 / (k + 1), "peak_GB": 26.0 / (k + 1)}
        | more
        for k, name in enumerate(names)
    }


def test_four_panels_have_curves_of_all_modes_and_bars_with_numbers():
    config = {"D": 4096, "F": 14336, "L": 2, "T": 4096}
    figures = {"backend": "nccl", "sizes": [{}, {"config": config, "sequences": 2, "modes": modes()}]}
    ax = draw.four_panels(*draw.recorded_profile(recordings={"2 x NVIDIA H200": figures}))
    assert ax.get_title(loc="left") == "h 4096, F 14336, 2 layers, s 4096, b 2; 2 x NVIDIA H200"
    loss, norm, time, peak = ax.child_axes
    assert [panel.get_title(loc="left") for panel in ax.child_axes] == [
        "loss (nats a token)", "gradient norm", "ms a step", "peak of a rank, GB",
    ]  # fmt: skip
    assert [list(line.get_ydata()) for line in marked(loss, "curve")] == [[5.0, 4.0, 3.5]] * 4
    assert [list(line.get_ydata()) for line in marked(norm, "curve")] == [[2.0, 1.0, 0.8]] * 4
    widths = [line.get_linewidth() for line in marked(loss, "curve")]
    assert widths == sorted(widths, reverse=True), "curves that are equal all stay visible"
    assert [bar.get_width() for bar in marked(time, "bar")] == pytest.approx([80, 40, 80 / 3, 20])
    assert [text.get_text().strip() for text in peak.texts] == ["26", "13", "8.67", "6.5"]
    assert [fault for panel in ax.child_axes for fault in faults(panel)] == []


def test_without_a_peak_its_panel_says_so():
    ax = draw.four_panels(modes(peak_GB=None))
    assert {text.get_text() for text in ax.child_axes[3].texts} == {"not known on a CPU"}
    drawn(ax)


def test_more_modes_than_can_be_told_apart_are_refused():
    with pytest.raises(ValueError, match="5 modes: give 1 to 4"):
        draw.four_panels(modes() | {"more": {}})
