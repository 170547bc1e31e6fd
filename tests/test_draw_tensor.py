"""Pictures of columns and rows: parts lie where the ranks hold them, ratios are what the numbers say."""

import pytest
from matplotlib.colors import to_hex
from test_draw_helpers import faults, marked

from tpcourse import draw
from tpcourse.block import GPT, GPTConfig
from tpcourse.block.layouts import shard_of
from tpcourse.draw.palette import TEXT, colour
from tpcourse.draw.times import rows_of

CONFIG = GPTConfig(V=66, T=8, D=24, H=24, kv_heads=1, F=20, L=2, rotary=False)
HELD = {"parameter": 40.0, "gradient": 40.0, "moment": 160.0, "activation": 200.0}


def area(patches):
    """Area by colour."""
    found = {}
    for patch in patches:
        shade = to_hex(patch.get_facecolor())
        found[shade] = found.get(shade, 0) + patch.get_width() * patch.get_height()
    return found


def colours(p):
    return [to_hex(colour(rank)) for rank in range(p)]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_both_cuts_give_each_rank_its_part_and_nothing_overlaps(p):
    ax = draw.two_splits(5, 12, 18, p)
    partial, strips = marked(ax, "partial"), marked(ax, "strip")
    assert len(partial) == p and len({(card.get_x(), card.get_y()) for card in partial}) == p
    assert len(strips) == (4 * p if p > 1 else 0)  # W^T twice, y of columns, x of rows
    assert sorted(area(partial)) == sorted(colours(p))
    assert faults(ax) == []


def test_uneven_parts_are_drawn_uneven():
    strips = marked(draw.two_splits(5, 12, 18, 4), "strip")
    by_rows_x = strips[:4]
    assert len({round(strip.get_width(), 6) for strip in by_rows_x}) == 1
    y = strips[-4:]
    assert [strip.get_width() / y[-1].get_width() for strip in y] == pytest.approx([5 / 4, 5 / 4, 1, 1])


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_a_head_has_a_stripe_for_each_rank_that_holds_it_and_each_rank_as_many_query_heads(p):
    ax = draw.head_cells(24, (24, p, 1), p)
    assert len(marked(ax, "head")) == 24 + 24 + p + 1
    assert len(marked(ax, "stripe")) == 24 + 24 + p + p
    shares = area(marked(ax, "stripe")[:24])
    assert sorted(shares) == sorted(colours(p)) and max(shares.values()) == pytest.approx(min(shares.values()))
    assert faults(ax) == []


def shards(p):
    named = list(GPT(CONFIG, device="meta").named_parameters())
    return [{name: shard_of(name, tuple(w.shape), CONFIG, p, r) for name, w in named} for r in range(p)]


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_the_pieces_of_all_ranks_cover_each_weight_once(p):
    ax = draw.weight_pieces(shards(p))
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert "blocks.0.attention.qkv.weight" in names and not any(name.startswith("blocks.1") for name in names)
    assert sum(area(marked(ax, "piece")).values()) == pytest.approx(0.76 * len(names))
    assert faults(ax) == []


def test_a_piece_that_several_ranks_hold_shows_all_of_them():
    ax = draw.weight_pieces(shards(4))
    qkv = [label.get_text() for label in ax.get_yticklabels()].index("blocks.0.attention.qkv.weight")
    pieces = [piece for piece in marked(ax, "piece") if abs(piece.get_y() + piece.get_height() / 2 - qkv) < 0.4]
    queries = [piece for piece in pieces if piece.get_height() > 0.7]
    assert len(queries) == 4 and len(pieces) == 4 + 2 * 4  # K and V of one head on 4 ranks
    assert sum(piece.get_width() for piece in queries) == pytest.approx(24 / 26)


def test_an_error_above_the_limit_is_dark_and_so_is_one_that_is_no_number():
    rows = {"right": {"y": 3e-16, "dx": 0.0}, "wrong": {"y": 2e-16, "dx": 0.7}}
    ax = draw.error_table({**rows, "broken": {"y": float("nan"), "dx": 1.0}})
    assert len(marked(ax, "wrong")) == 3 and len(marked(ax, "right")) == 3
    assert {to_hex(cell.get_facecolor()) for cell in marked(ax, "wrong")} == {TEXT.lower()}
    assert "7e-01" in [text.get_text() for text in ax.texts]
    assert faults(ax) == []


def test_a_share_is_the_rank_s_bytes_over_one_device_s_and_the_last_is_that_of_the_sum():
    part = {"parameter": 21.0, "gradient": 20.0, "moment": 80.0, "activation": 120.0}
    ax = draw.memory_shares(HELD, part)
    shown = [text.get_text().strip() for text in ax.texts]
    assert shown == ["0.53", "0.50", "0.50", "0.60", "0.55"] and faults(ax) == []


def test_a_line_of_traffic_goes_through_its_points():
    ways = {"gathered": {256: 1e4, 50257: 2e6}, "three numbers": {256: 288.0, 50257: 288.0}}
    ax = draw.traffic_curve(ways, "V")
    assert [list(line.get_ydata()) for line in marked(ax, "way")] == [[1e4, 2e6], [288, 288]]
    assert [text.get_text() for text in ax.texts] == ["2 MB", "288 B"] and faults(ax) == []


def figures(p=2):
    ms = {"one device": 10.0, "ours": 5.5, "ours, tokens split": 6.0, "torch's": 7.0, "torch's, tokens split": 8.0}
    modes = {"one device": {"ms": 20.0}, "TP": {"ms": 30.0}, "TP, tokens split": {"ms": 35.0}}
    model = {"sizes": {"L": 12, "D": 512, "F": 2048}, "modes": modes}
    mlp, block = ({"D": D, "F": F, "ms": ms} for D, F in ((8192, 28672), (64, 256)))
    return {"p": p, "mlp": [mlp], "block": [block], "model": model}


def test_a_mark_stands_at_its_time_over_one_device_s_and_the_grey_bar_ends_at_1_over_p():
    ax = draw.split_times({"this machine": {"p": 4, "mlp": figures()["mlp"]}, "2 x H200": figures()})
    ratios = [line.get_xdata()[0] for line in marked(ax, "ratio")]
    assert ratios == pytest.approx([0.55, 0.6, 0.7, 0.8] * 3 + [1.5, 1.75])
    assert [bar.get_x() for bar in marked(ax, "gain")] == pytest.approx([0.25, 0.5, 0.5, 0.5])
    assert faults(ax) == []


def test_the_sizes_of_a_run_are_named_by_part_width_and_hidden_width():
    names = [row.name for row in rows_of(figures())]
    assert names == ["mlp, h 8192, F 28672", "block, h 64, F 256", "12 layers, h 512, F 2048"]


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (lambda: draw.two_splits(5, 3, 18, 4), "D = 3, F = 18 on p = 4 ranks"),
        (lambda: draw.head_cells(24, (3,), 2), r"24 heads with \[3\] K/V heads on p = 2 ranks"),
        (lambda: draw.weight_pieces([]), "0 ranks"),
        (lambda: draw.error_table({}), "0 kernels"),
        (lambda: draw.error_table({"a": {"y": 0.0}, "b": {"dx": 0.0}}), "the same tensors"),
        (lambda: draw.memory_shares(HELD, {"parameter": 1.0}), "give both the same of parameter"),
        (lambda: draw.traffic_curve({}), "0 ways: give 1 to 4"),
        (lambda: draw.traffic_curve({"a": {1: 0.0}}), "bytes above 0"),
        (lambda: draw.split_times({}), "0 machines"),
        (lambda: draw.split_times({"a": {"p": 2}}), "1 machines"),
    ],
)
def test_bad_input_is_answered_with_the_numbers_and_the_fix(picture, words):
    with pytest.raises(ValueError, match=words):
        picture()
