"""Loss curves: every loss is drawn, equal curves stay visible, and the end of each is in words."""

import math

import pytest
from matplotlib.colors import to_rgb
from test_draw_helpers import drawn, faults, marked

from tpcourse import draw
from tpcourse.draw.palette import png

FALLING = [5.5 * 0.97**step for step in range(60)]
OTHER = [loss + 0.5 for loss in FALLING[:40]]


def words(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_every_loss_stands_at_its_step_and_the_first_step_is_1():
    ax = draw.loss_curve(FALLING)
    (line,) = marked(ax, "loss")
    assert list(line.get_ydata()) == FALLING and list(line.get_xdata()) == list(range(1, 61))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "loss (nats a token)")


def test_each_curve_has_its_name_and_its_last_loss():
    ax = draw.loss_curve({"TP 2": FALLING, "no sum": OTHER}, one_device=FALLING)
    end = f"{FALLING[-1]:.4f}"
    assert words(ax) == [f"TP 2: {end}", f"no sum: {OTHER[-1]:.4f}", f"one device: {end}"]


def test_only_the_one_device_curve_is_dashed_and_it_lies_on_top():
    ax = draw.loss_curve({"TP 2": FALLING, "TP 4": FALLING}, one_device=FALLING)
    assert [line.get_linestyle() for line in marked(ax, "loss")] == ["-", "-", "--"]
    assert [line.is_dashed() for line in marked(ax, "loss")] == [False, False, True]


def test_curves_that_lie_on_each_other_are_bands_within_bands_ever_darker():
    ax = draw.loss_curve(dict.fromkeys(["1", "2", "3", "4"], FALLING), one_device=FALLING)
    widths = [line.get_linewidth() for line in marked(ax, "loss")]
    light = [to_rgb(line.get_color())[0] for line in marked(ax, "loss")]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 5
    assert light == sorted(light, reverse=True) and len(set(light)) == 5


def test_the_loss_of_a_guess_is_a_line_at_ln_v():
    ax = draw.loss_curve(FALLING, V=256)
    (line,) = marked(ax, "guess")
    assert line.get_ydata()[0] == pytest.approx(math.log(256))
    assert [text.get_text() for text in ax.texts] == ["a guess: ln 256 = 5.55"]
    assert marked(draw.loss_curve(FALLING), "guess") == []


@pytest.mark.parametrize("names", [1, 2, 3, 4])
@pytest.mark.parametrize("one_device", [None, FALLING])
def test_no_text_overlaps_or_leaves_the_picture(names, one_device):
    losses = {f"TP {2**number} + SP": FALLING for number in range(names)}
    assert faults(draw.loss_curve(losses, one_device=one_device, V=256)) == []


def test_one_loss_is_a_point_that_can_be_seen():
    ax = draw.loss_curve([2.5])
    drawn(ax)
    assert marked(ax, "loss")[0].get_marker() == "o" and words(ax) == ["loss: 2.5000"]


def test_axes_that_are_given_are_drawn_on_and_the_same_losses_give_the_same_picture():
    ax = draw.loss_curve(FALLING)
    assert draw.loss_curve(OTHER, ax=ax) is ax and len(marked(ax, "loss")) == 2
    assert png(draw.loss_curve(FALLING, V=256)) == png(draw.loss_curve(FALLING, V=256))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (({},), "0 curves: give the losses of one, or a mapping of 1 to 4 names"),
        ((dict.fromkeys("abcde", FALLING),), "5 curves"),
        (([],), "0 losses for loss: train at least one step first"),
        (({"TP 2": FALLING}, []), "0 losses for one device"),
        ((FALLING, None, 1), "V = 1: a guess needs 2 tokens or more"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw.loss_curve(*arguments)


def test_ticks_are_whole_steps():
    ax = draw.loss_curve([5.0 - step / 10 for step in range(20)])
    assert all(tick == round(tick) for tick in ax.get_xticks())
