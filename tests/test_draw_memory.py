"""The piggy bank and its sliders, and the curve of a step: what is drawn is what the numbers say."""

import pytest
from test_draw_helpers import faults, marked, page
from test_draw_stepper import WIDGET, shown  # noqa: F401  (a fixture)

from tpcourse import draw
from tpcourse.draw.curve import positions
from tpcourse.draw.palette import colour, png
from tpcourse.draw.piggy import MOST, Share, shares, verdict
from tpcourse.draw.piggy_sliders import HINT, Sliders, frame
from tpcourse.memory import Peak, Rates, model_state_bytes

STATES = model_state_bytes(10**9)  # 16 GB
FORMULA = Rates.formula()


def words(ax):
    return " ".join(text.get_text() for text in ax.texts)


def test_bytes_fill_a_bank_from_the_bottom_in_the_order_of_kinds():
    assert shares({"moment": 50.0, "parameter": 25.0}, 100.0) == [
        [Share("parameter", 0.0, 0.25), Share("moment", 0.25, 0.75)]
    ]


def test_what_does_not_fit_goes_into_the_next_bank():
    assert shares({"parameter": 150.0, "moment": 100.0}, 100.0) == [
        [Share("parameter", 0.0, 1.0)],
        [Share("parameter", 0.0, 0.5), Share("moment", 0.5, 1.0)],
        [Share("moment", 0.0, 0.5)],
    ]


@pytest.mark.parametrize("total", [0.0, 1.0, 99.9, 100.0, 100.1, 250.0, 1234.5])
def test_all_bytes_are_in_the_banks_and_no_bank_overflows(total):
    held = {"parameter": 0.125 * total, "moment": 0.5 * total, "activation": 0.375 * total}
    banks = shares(held, 100.0)
    tops = [sum(share.top - share.bottom for share in bank) for bank in banks]
    assert sum(tops) * 100 == pytest.approx(total)
    assert all(top <= 1 + 1e-9 for top in tops)
    assert len(banks) == max(1, -(-total // 100))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 15, 37, 60, 200])
def test_there_is_one_bank_for_each_that_the_bytes_would_fill_and_no_text_overlaps(count):
    ax = draw.piggy_bank({"parameter": (count - 0.5) * 80e9}, formula=STATES, title="a model\nof some size")
    assert len(marked(ax, "bank")) == min(count, MOST)
    assert len(marked(ax, "parameter")) == min(count, MOST)
    assert faults(ax) == []


def test_the_height_of_a_layer_is_its_share_of_the_bank():
    ax = draw.piggy_bank({"parameter": 20e9, "moment": 40e9})
    (bank,), (parameter,), (moment,) = (marked(ax, gid) for gid in ("bank", "parameter", "moment"))
    assert parameter.get_height() / bank.get_height() == pytest.approx(0.25)
    assert moment.get_height() / bank.get_height() == pytest.approx(0.5)


def test_colour_is_the_rank_and_buffers_are_hatched():
    ax = draw.piggy_bank({"parameter": 20e9, "buffer": 5e9}, rank=1)
    (parameter,), (buffer,) = marked(ax, "parameter"), marked(ax, "buffer")
    assert parameter.get_facecolor()[:3] == pytest.approx(
        tuple(int(colour(1)[i : i + 2], 16) / 255 for i in (1, 3, 5))
    )
    assert buffer.get_hatch() and not parameter.get_hatch()


def test_the_panel_says_each_kind_the_total_the_formula_and_whether_it_fits():
    ax = draw.piggy_bank({"parameter": 2.1e9, "moment": 8e9}, formula={"parameter": 2e9, "moment": 8e9})
    for text in (
        "parameter",
        "2.1 GB",
        "2 GB",
        "10.1 GB",
        "10 GB",
        "formula",
        "Fits in 80 GB: 69.9 GB free.",
    ):
        assert text in words(ax)
    assert "formula" not in words(draw.piggy_bank({"parameter": 2e9}))


def test_the_verdict_counts_the_banks():
    assert verdict(80e9, 80e9) == "Fits in 80 GB: 0 B free."
    assert verdict(1120e9, 80e9) == "Does not fit in 80 GB:\nit takes 14 banks like it."
    assert "(60 are drawn)" in verdict(1e13, 80e9)


def test_a_picture_can_stand_in_given_axes():
    ax = page()
    assert draw.piggy_bank(STATES, ax=ax) is ax


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw.piggy_bank({"weights": 1.0}), "'weights': 1.0 bytes; kinds are parameter, gradient"),
        (lambda: draw.piggy_bank({"parameter": -1.0}), "bytes are not negative"),
        (lambda: draw.piggy_bank({}, capacity_bytes=0), "capacity_bytes = 0"),
        (lambda: draw.piggy_bank({}, formula={"parameter": -2.0}), "'parameter': -2.0"),
        (lambda: frame(FORMULA, 0, 1, 512, 1, "none"), "num_parameters = 0"),
        (lambda: draw.piggy_bank_sliders(billions=0), "billions = 0: choose 1 to 100"),
        (lambda: draw.piggy_bank_sliders(layers=1000), "layers = 1000: choose 8 to 128"),
        (lambda: draw.piggy_bank_sliders(tokens=1000), "tokens = 1000: choose one of 512, 1024"),
        (lambda: draw.piggy_bank_sliders(recompute="some"), "'some' is unknown"),
        (lambda: draw.piggy_bank_sliders(capacity_bytes=-1.0), "capacity_bytes = -1.0"),
        (lambda: draw.memory_curve({}), "0 peaks"),
        (lambda: draw.memory_curve(Peak()), "0 bytes in all peaks"),
    ],
)
def test_wrong_input_is_refused_with_its_number(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_ten_billion_parameters_need_160_gigabytes_of_states_and_seventy_1120():
    assert "160 GB" in draw_total(10) and "1.12 TB" in draw_total(70)


def draw_total(billions):
    return words(draw.piggy_bank(model_state_bytes(billions * 10**9)))


@pytest.mark.parametrize("sizes", [(1, 8, 512, 1, "full"), (10, 48, 2048, 1, "none"), (100, 128, 32768, 16, "none")])
def test_models_of_all_sizes_are_drawn_without_overlap(sizes):
    assert faults(frame(FORMULA, *sizes)) == []


def test_the_first_picture_is_an_ordinary_png_the_same_on_every_run(shown):  # noqa: F811
    assert draw.piggy_bank_sliders(FORMULA) is None
    draw.piggy_bank_sliders()
    controls, picture, _, again = shown
    assert controls["text/plain"] == HINT and WIDGET in controls
    data, _ = picture._repr_mimebundle_()
    assert data["text/plain"] == "Picture: piggy bank" and WIDGET not in data
    assert png(picture) == png(again)


def test_moving_a_slider_replaces_the_picture(shown):  # noqa: F811
    sliders = Sliders(FORMULA, 10, 48, 2048, 1, "none", 80e9)
    sliders.show()
    moves = {"billions": (70, "70 B"), "recompute": ("full", "recompute full"), "tokens": (8192, "8,192 tokens"),
             "layers": (80, "80 layers"), "batch": (4, "4 x")}  # fmt: skip
    for control, (value, text) in moves.items():
        before = len(shown)
        getattr(sliders, control).value = value
        assert [word for word, _ in shown[before:]] == ["update"]
        assert text in words(shown[-1][1])
    assert png(shown[-1][1]) != png(shown[1])


def test_measured_rates_move_the_picture_and_not_the_formula_beside_it():
    leaner = Rates({"parameter": 2.0, "gradient": 2.0, "moment": 8.0})
    ax = frame(leaner, 10, 48, 2048, 1, "full")
    assert "master" in words(ax), "the formula has it"
    assert len(marked(ax, "master")) == 0


def test_a_curve_is_drawn_for_each_peak_with_its_highest_point_and_the_moments():
    none = Peak([0, 400_000, 1_200_000, 300_000], [(0, "forward"), (2, "backward")])
    full = Peak([0, 100_000, 600_000, 0, 0], [(0, "forward"), (3, "backward")])
    ax = draw.memory_curve({"none": none, "full": full})
    first, second = marked(ax, "curve")
    assert list(first.get_ydata()) == [0, 0.4, 1.2, 0.3]
    assert first.get_linestyle() != second.get_linestyle()
    for text in ("forward", "backward", "1.2", "0.6"):
        assert text in words(ax)
    assert ax.get_ylabel() == "memory (MB)"
    assert faults(ax) == []


def test_the_same_parts_of_two_steps_lie_together_however_many_operations_they_have():
    assert positions(Peak([0, 1, 2, 3, 4], [(0, "a"), (2, "b")])) == [0, 0.5, 1, 1.5, 2]
    assert positions(Peak([0, 1, 2, 3, 4], [(0, "a"), (4, "b")])) == [0, 0.25, 0.5, 0.75, 1]
    assert positions(Peak([0, 1, 2])) == [0, 0.5, 1]


def test_steps_with_other_moments_cannot_be_compared():
    with pytest.raises(ValueError, match="moments differ"):
        draw.memory_curve({"a": Peak([0, 1], [(0, "x")]), "b": Peak([0, 1], [(0, "y")])})
