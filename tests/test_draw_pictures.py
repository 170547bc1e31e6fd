"""What is drawn: nothing overlaps, colour is rank, and the picture says what the data says."""

import subprocess
import sys

import matplotlib as mpl
import pytest
from matplotlib.colors import to_hex
from test_draw_helpers import collectives, event, faults, log_of, marked, page

from tpcourse import draw
from tpcourse.draw.algorithms import Move
from tpcourse.draw.palette import COLOURS, bytes_text, colour, ink, png, tint
from tpcourse.draw.stepper import frame
from tpcourse.draw.symbols import OPS
from tpcourse.ledger import Log

SIZES = (2, 4, 8)


def fills(ax, gid):
    return [to_hex(artist.get_facecolor()).upper() for artist in marked(ax, gid)]


def words(ax):
    return [text.get_text() for text in ax.texts]


def bytes_of(p):
    return [{"parameter": 2e9, "gradient": 2e9, "moment": 8e9, "buffer": 1e9 + 1e8 * r} for r in range(p)]


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("name", ["all_gather, ring", "all_reduce, ring", "broadcast, tree", "all_to_all, pairwise"])
def test_a_message_diagram_has_one_arrow_per_message_and_one_cell_per_element(name, p):
    logs = log_of(name, p, p if p == 8 else 2 * p)
    ax = draw.messages(logs)
    shown = [m for m in draw.steps(logs) if m.step < 8]
    assert len(marked(ax, "arrow")) == len(shown)
    assert fills(ax, "sent") == fills(ax, "arrived") == [colour(m.src).upper() for m in shown for _ in range(m.num)]
    assert all(cell.get_hatch() for cell in marked(ax, "arrived"))
    assert not any(cell.get_hatch() for cell in marked(ax, "sent"))
    assert faults(ax) == []


def test_cells_are_drawn_where_the_elements_are():
    sent, arrived = (
        Log([event(0, "send", 0, 1, peer=1, offset=6, numel=2)]),
        Log([event(1, "recv", 0, 1, peer=0, offset=2, numel=2)]),
    )
    ax = draw.messages([sent, arrived])
    strip = 0.84 / 8
    tops = [cell.get_y() + cell.get_height() for cell in marked(ax, "sent") + marked(ax, "arrived")]
    assert tops == pytest.approx([-6 * strip, -7 * strip, -1 - 2 * strip, -1 - 3 * strip])
    assert "6:8" in words(ax)


def test_a_long_log_is_shortened_and_says_so():
    logs = log_of("all_reduce, ring", 8, 8)
    assert "Steps 0 to 7 of 14 are drawn; first_step=8 shows others." in words(draw.messages(logs))
    rest = draw.messages(logs, first_step=8)
    assert len(marked(rest, "arrow")) == 48 and "step 13" in words(rest)


def test_large_arrays_are_drawn_in_equal_cells_and_say_their_size():
    ax = draw.messages(log_of("all_gather, ring", 4, 64))
    assert "One cell is 4 elements." in words(ax) and len(marked(ax, "sent")) == 12 * 4


def test_arrays_without_a_common_size_are_drawn_to_scale():
    ax = draw.messages(log_of("all_gather, ring", 3, 1001))
    assert len(marked(ax, "sent")) == 6 and faults(ax) == []
    assert "Drawn to scale: a strip is 1,001 elements." in words(ax)


def test_a_send_that_nobody_received_is_dashed_and_said():
    ax = draw.messages([Log([event(0, "send", 0, None, peer=1)])])
    assert "Dashed: 1 send without a receive in these logs." in words(ax)
    assert marked(ax, "arrow")[0].get_linestyle() != "-" and not marked(ax, "arrived")


@pytest.mark.parametrize("p", SIZES)
def test_a_collective_is_a_band_over_its_group_with_name_and_bytes(p):
    ax = draw.messages(collectives("reduce_scatter", [tuple(range(p))], "world", calls=3))
    assert len(marked(ax, "band")) == 3 * p and len(marked(ax, "given")) == 3 * p * 4
    assert words(ax).count("reduce_scatter\nworld\nsends 24 B") == 3 * p
    assert faults(ax) == []


def test_groups_that_interleave_have_spines_apart():
    ax = draw.messages(collectives("all_reduce", [(0, 2), (1, 3)], "dp"))
    assert len({tuple(line.get_segments()[0][:, 0]) for line in ax.collections if line.get_linewidth()[0] == 3}) == 2
    assert faults(ax) == []


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("op", OPS)
def test_before_and_after_shows_each_element_in_its_ranks_colours(op, p):
    ax = draw.before_after(op, p)
    held = [cell for part in draw.holdings(op, p) for row in part for cell in row]
    assert len(marked(ax, "cell")) == len(held)
    assert fills(ax, "stripe") == [colour(r).upper() for cell in held if cell for r in cell.ranks]
    assert faults(ax) == []


@pytest.mark.parametrize("p", SIZES)
def test_real_values_are_printed_and_coloured_by_where_they_came_from(p):
    before = [[10.5 * r, 10.5 * r + 1] for r in range(p)]
    ax = draw.before_after(before, before[1:] + before[:1])
    came_from = [*range(p), *range(1, p), 0]
    assert fills(ax, "stripe") == [colour(r).upper() for r in came_from for _ in range(2)]
    assert "10.5" in words(ax) and faults(ax) == []


def test_long_tensors_are_shortened_and_say_so():
    ax = draw.before_after([list(range(40))], [list(range(40))])
    assert "The first 16 of 40 elements are drawn." in words(ax)


@pytest.mark.parametrize(("name", "p", "step"), [
    ("all_reduce, ring", 2, 0), ("all_reduce, ring", 3, 1), ("all_reduce, ring", 8, 3), ("broadcast, tree", 8, 2),
    ("all_to_all, pairwise", 4, 1), ("all_reduce, halving and doubling", 4, 0), ("gather, one by one", 4, 3),
])  # fmt: skip
def test_a_step_has_one_arrow_per_element_that_travels(name, p, step):
    ax, rounds = frame(name, p, step), draw.play(name, p)[1]
    moves = rounds[step] if step < len(rounds) else []
    assert len(marked(ax, "arrow")) == len(moves)
    assert words(ax).count("+") == sum(move.adds for move in moves)
    assert faults(ax) == []


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("formula", ["none", "one", "each"])
def test_memory_bars_stack_to_the_sum_in_the_ranks_colour(p, formula):
    held = bytes_of(p)
    ax = draw.memory_bars(held, {"none": None, "one": held[0], "each": held}[formula])
    tops = [text.get_text() for text in ax.texts if text.get_weight() == "bold"]
    assert tops[:p] == [f"{sum(kinds.values()) / 1e9:.3g}" for kinds in held]
    bars = [patch for patch in ax.patches if patch.get_gid() == "parameter"]
    assert [to_hex(bar.get_facecolor()).upper() for bar in bars[:p]] == list(COLOURS[:p])
    assert ax.get_ylabel() == "memory (GB)" and faults(ax) == []


def test_only_buffers_of_communication_are_hatched():
    ax = draw.memory_bars(bytes_of(2))
    assert {patch.get_gid() for patch in ax.patches if patch.get_hatch()} == {"buffer"}


@pytest.mark.parametrize("p", SIZES)
def test_a_timeline_hatches_communication_and_not_computation(p):
    ax = draw.timeline(collectives("all_reduce", [tuple(range(p))], "world", calls=4))
    assert len(marked(ax, "communication")) == 4 * p and len(marked(ax, "compute")) == 3 * p
    assert all(bar.get_hatch() for bar in marked(ax, "communication"))
    assert not any(bar.get_hatch() for bar in marked(ax, "compute") + marked(ax, "free"))
    assert ax.get_xlabel() == "time (ms)" and faults(ax) == []


def test_sends_and_receives_at_one_time_share_a_name():
    ax = draw.timeline(log_of("all_reduce, ring", 4, 4))
    assert set(words(ax)) == {"send + recv"} and faults(ax) == []


@pytest.mark.parametrize(("shape", "groups"), [
    ((2,), 1), ((3,), 1), ((2, 2), 4), ((2, 4), 6), ((4, 2), 6), ((1, 8), 9), ((8, 1), 9), ((8,), 1),
])  # fmt: skip
def test_a_grid_outlines_every_group(shape, groups):
    ax = draw.grid(shape, ("dp", "tp")[-len(shape) :])
    ranks = fills(ax, "rank")
    assert len(marked(ax, "group")) == groups and ranks == [colour(r).upper() for r in range(len(ranks))]
    assert faults(ax) == []


def test_grid_names_the_ranks_of_each_group():
    assert {"tp: 0, 1", "tp: 2, 3", "dp: 0,2", "dp: 1,3"} <= set(words(draw.grid((2, 2), ("dp", "tp"))))


def test_pictures_fit_jupyterlabs_width():
    logs = log_of("all_reduce, ring", 8, 8)
    pictures = [draw.messages(logs), draw.timeline(logs), draw.before_after("all_reduce", 8)]
    pictures.append(frame("all_reduce, ring", 8, 0))
    assert all(ax.figure.get_figwidth() <= 9.5 for ax in pictures)


def test_colours_of_eight_ranks_differ_for_every_eye_or_in_lightness():
    assert len({colour(rank) for rank in range(16)}) == 16
    assert ink(colour(6)) != ink(colour(7)) and tint("#000000", 0.0) == "#ffffff"


def test_a_picture_draws_into_axes_it_is_given():
    ax = page()
    assert draw.messages(log_of("all_gather, ring", 2, 4), ax=ax) is ax and marked(ax, "arrow")


def test_the_readers_style_is_neither_used_nor_changed():
    plain = png(draw.grid((2,), ("tp",)))
    with mpl.rc_context({"font.size": 30, "text.color": "red", "figure.facecolor": "black"}):
        before = dict(mpl.rcParams)
        assert png(draw.grid((2,), ("tp",))) == plain
        assert dict(mpl.rcParams) == before


def test_a_picture_shows_itself_once_with_a_text_that_does_not_change():
    ax = draw.messages(log_of("all_gather, ring", 4, 8))
    data, _ = ax._repr_mimebundle_()
    assert data["text/plain"] == "Picture: messages" and data["image/png"][:4] == b"\x89PNG"
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_importing_draw_loads_neither_matplotlib_nor_torch():
    code = "import sys, tpcourse.draw; print([m for m in ('matplotlib', 'torch', 'ipywidgets') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_bytes_are_decimal():
    assert [bytes_text(n) for n in (48, 1500, 16e9, 999_700)] == ["48 B", "1.5 kB", "16 GB", "1 MB"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: draw.messages(Log()), "0 events"),
        (lambda: draw.timeline([]), "0 events"),
        (lambda: draw.messages(Log([event(1, "recv", 0, None, peer=0)])), "1 receive and no send.*all ranks"),
        (lambda: draw.messages(log_of("all_gather, ring", 2, 2), first_step=3), "first_step = 3.*1 step.*0 to 0"),
        (lambda: draw.before_after("allgather", 4), "allgather.*all_gather"),
        (lambda: draw.before_after([[1]], [[1], [2]]), "1 ranks before and 2 after"),
        (lambda: draw.before_after("all_reduce", 2, 40), "40 elements.*at most 16"),
        (lambda: draw.exchange(draw.holdings("all_reduce", 2, 20)[0], [Move(0, 1, 0, 0)]), "20 elements"),
        (lambda: draw.memory_bars([]), "0 ranks"),
        (lambda: draw.memory_bars([{"weights": 3}]), "'weights': 3 bytes; kinds are parameter"),
        (lambda: draw.memory_bars(bytes_of(3), bytes_of(2)), "2 formulas for 3 ranks"),
        (lambda: draw.grid((2, 2, 2), ("pp", "dp", "tp")), "shape .2, 2, 2."),
        (lambda: draw.grid((2,), ("dp", "tp")), "one name each"),
        (lambda: frame("all_gather, ring", 4, 9), "step = 9.*choose 0 to 3"),
    ],
)
def test_bad_input_is_answered_with_the_numbers_and_the_fix(call, words):
    with pytest.raises(ValueError, match=f"(?s){words}"):
        call()
