"""Pictures of lesson 07: pieces of flat arrays, layers that come and go, bytes a weight beside the formula."""

import pytest
from matplotlib.colors import to_hex
from test_draw_helpers import faults, marked

from tpcourse import draw
from tpcourse.draw.palette import colour

FLATS = [{"2.bias": 2, "1.bias": 5, "0.bias": 3}, {"2.weight": 10, "1.weight": 15, "0.weight": 12}]
NAMES = ["tokens.weight", "blocks.0", "blocks.1"]
HELD = {"parameter": 2.0, "gradient": 1.0, "master": 2.0, "moment": 4.0}


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_pieces_are_equal_in_the_ranks_colours_and_reach_into_the_padding(p):
    ax = draw.flat_pieces(FLATS, p)
    pieces = marked(ax, "piece")
    assert [to_hex(piece.get_facecolor()) for piece in pieces] == [to_hex(colour(rank)) for rank in range(p)] * 2
    lengths = {-(-size // p) for size in (10, 37)}
    assert {piece.get_width() for piece in pieces} == lengths and faults(ax) == []
    ends = [(box.get_x(), box.get_x() + box.get_width()) for box in marked(ax, "padding")]
    assert ends == [(size, p * -(-size // p)) for size in (10, 37) if size % p]


def test_borders_lie_between_weights_and_names_stand_where_they_fit():
    ax = draw.flat_pieces(FLATS, 4)
    assert [line.get_xdata()[0] for line in marked(ax, "border")] == [0, 2, 7, 10, 0, 10, 25, 37]
    assert [text.get_text() for text in ax.texts] == ["1.bias", "0.bias", "2.weight", "1.weight", "0.weight"]


def test_an_array_with_much_padding_and_one_of_many_weights_can_be_read():
    many = {f"blocks.{number}.norm.weight": 7 + number for number in range(40)}
    assert faults(draw.flat_pieces([many, {"scale": 1}], 8)) == []


def seen(prefetch):
    """A step of two blocks: forward through both, backward to the first; three operations each."""
    rows = []
    for now, following in ((1, 2), (2, 0), (2, 1), (1, 0)):
        row = [(50, False)] + [(100 * (number == now), False) for number in (1, 2)]
        if prefetch and following:
            row[following] = (100, True)
        rows += [row] * 3
    return rows


def spans(ax, gid):
    """From, to of each bar, rounded."""
    boxes = [bar.get_paths()[0].get_extents() for bar in marked(ax, gid)]
    return [(round(box.x0), round(box.x1)) for box in boxes]


def test_a_layer_is_hatched_while_it_travels_and_solid_while_it_is_here():
    ax = draw.layers_here({"with": seen(True)}, NAMES, backward=6)
    assert spans(ax, "here") == [(0, 12), (0, 3), (9, 12), (3, 9)] and spans(ax, "coming") == [(6, 9), (0, 3)]
    assert all(bar.get_hatch() for bar in marked(ax, "coming"))
    assert not any(bar.get_hatch() for bar in marked(ax, "here"))


def test_each_step_has_a_part_with_its_most_bytes():
    ax = draw.layers_here({"with prefetch": seen(True), "without": seen(False)}, NAMES, backward=6)
    shown = {text.get_text() for text in ax.texts}
    assert {"with prefetch", "without", "at most 250 B at a time", "at most 150 B at a time"} <= shown
    assert faults(ax) == []
    assert [label.get_text() for label in ax.get_yticklabels()] == NAMES * 2


@pytest.mark.parametrize("number", [1, 7, 24])
def test_lines_of_few_and_of_many_layers_can_be_read(number):
    names = [f"blocks.{k}" for k in range(number)]
    order = [*range(number), *reversed(range(number))]
    rows = [[(1000 * (k == now), False) for k in range(number)] for now in order]
    assert faults(draw.layers_here({"one": rows, "two": rows}, names, backward=number)) == []


def test_bars_lie_end_to_end_above_dashed_ones_of_the_formula():
    ax = draw.stage_bytes({"stage 2": HELD}, {"stage 2": HELD | {"moment": 5.0}})
    held, said = marked(ax, "held"), marked(ax, "formula")
    assert [bar.get_width() for bar in held] == [2, 1, 2, 4] and [bar.get_width() for bar in said] == [2, 1, 2, 5]
    assert [bar.get_x() for bar in held] == [0, 2, 3, 5]
    assert {bar.get_linestyle() for bar in said} == {"--"} and held[0].get_y() < said[0].get_y()
    assert "9" in [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("number", [1, 4, 7])
def test_bars_of_any_number_of_ways_can_be_read_and_thin_ones_have_no_number(number):
    thin = {"parameter": 0.02, "gradient": 0.5, "master": 1.0, "moment": 14.0}
    ways = {f"stage {k}, 16 ranks": thin for k in range(number)}
    ax = draw.stage_bytes(ways, ways)
    assert faults(ax) == [] and "0.02" not in [text.get_text() for text in ax.texts]


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (lambda: draw.flat_pieces([], 2), "0 flat arrays on p = 2"),
        (lambda: draw.flat_pieces(FLATS, 0), "2 flat arrays on p = 0"),
        (lambda: draw.flat_pieces([{"a": 0}], 2), "elements above 0"),
        (lambda: draw.flat_pieces([{}], 2), "elements above 0"),
        (lambda: draw.layers_here({}, NAMES, 1), "0 steps for 3 names"),
        (lambda: draw.layers_here({"a": []}, NAMES, 1), "1 steps for 3 names"),
        (lambda: draw.layers_here({"a": seen(True)}, NAMES[1:], 1), "bytes of every layer"),
        (lambda: draw.stage_bytes({}, {}), "give both the same"),
        (lambda: draw.stage_bytes({"a": HELD}, {"b": HELD}), r"\['a'\] and \['b'\]"),
        (lambda: draw.stage_bytes({"a": {"weights": 1}}, {"a": {}}), "weights"),
    ],
)
def test_bad_input_is_answered_with_the_numbers_and_the_fix(picture, words):
    with pytest.raises(ValueError, match=words):
        picture()
