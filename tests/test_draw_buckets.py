"""Pictures of buckets: each part of the gradients where it lies and when it left; curves that say what was recorded."""

import json

import pytest
from matplotlib.colors import to_hex
from test_draw_helpers import event, faults, marked

from tpcourse import draw
from tpcourse.draw.buckets import parts
from tpcourse.draw.palette import colour, tint
from tpcourse.draw.recordings import recorded
from tpcourse.ledger import Log


def call(rank, begin_s, offset, numel, dtype="float32", op="all_reduce"):
    return event(rank, op, begin_s, begin_s + 0.5, offset=offset, numel=numel, dtype=dtype, shape=(numel,))


def log_of(rank, *buckets):
    return Log([call(rank, k, *bucket) for k, bucket in enumerate(buckets)])


def figures(**more):
    points = [{"bucket_mb": mb, "step_ms": ms, "num_calls": 1} for mb, ms in ((1, 12), (25, 10.5), (700, 14))]
    return {"curve": points, "floor_ms": 10.0, "ddp_ms": 11.0, "p": 2, "backend": "nccl"} | more


def test_a_bucket_lies_where_it_lies_in_the_flat_array_and_counts_from_0():
    assert parts([log_of(1, (0, 4), (4, 8)), log_of(0, (4, 8), (0, 4))]) == [
        (0, 0, 16, 32), (0, 1, 0, 16), (1, 0, 0, 16), (1, 1, 16, 32),
    ]  # fmt: skip


def test_arrays_of_several_dtypes_and_gradients_of_their_own_are_laid_end_to_end():
    assert [part.first for part in parts(log_of(0, (0, 4), (0, 8, "bfloat16"), (4, 4)))] == [0, 32, 16]
    assert [part.first for part in parts(log_of(0, (0, 4), (0, 8), (0, 2)))] == [0, 16, 48]


def test_counts_and_other_operations_are_no_gradients():
    log = Log([call(0, 0, 0, 1, "int64"), call(0, 1, 0, 4, op="broadcast"), call(0, 2, 0, 4)])
    assert len(parts(log)) == 1


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
def test_the_order_has_a_row_for_each_call_and_a_strip_for_each_rank_in_its_colour(p):
    ax = draw.bucket_order([log_of(rank, (0, 4), (4, 8), (12, 8)) for rank in range(p)])
    strips = marked(ax, "bucket")
    assert len(strips) == 3 * p and all(strip.get_hatch() for strip in strips)
    assert [to_hex(s.get_facecolor()) for s in strips] == [tint(colour(r), 0.55) for r in range(p) for _ in range(3)]
    assert {(s.get_x(), s.get_width()) for s in strips} == {(0, 16), (16, 32), (48, 32)}
    assert faults(ax) == []


def test_a_rank_with_another_order_stands_out_of_its_row():
    ax = draw.bucket_order([log_of(0, (0, 4), (4, 8)), log_of(1, (4, 8), (0, 4))])
    first_row = [strip.get_x() for strip in marked(ax, "bucket") if strip.get_y() < 0.4]
    assert first_row == [0, 16]


def test_many_calls_are_shortened_and_the_picture_says_so():
    ax = draw.bucket_order(log_of(0, *((4 * k, 4) for k in range(30))))
    assert len(marked(ax, "bucket")) == 24 and "6 later calls are not drawn" in ax.get_xlabel()
    assert faults(ax) == []


def test_a_curve_shows_each_machine_over_its_own_floor_and_torch_as_a_dashed_line():
    ax = draw.bucket_curve({"this machine": figures(), "2 x H200": figures(ddp_ms=10.2)})
    curves, ddp = marked(ax, "curve"), marked(ax, "ddp")
    assert list(curves[0].get_ydata()) == pytest.approx([1.2, 1.05, 1.4])
    assert [line.get_ydata()[0] for line in ddp] == pytest.approx([1.1, 1.02])
    assert len(marked(ax, "floor")) == 1 and faults(ax) == []


def test_a_recorded_run_is_named_by_its_machine_and_none_is_no_error(tmp_path):
    assert recorded("data", tmp_path) == {}
    content = {"machine": {"cards": ["NVIDIA H200"] * 2, "nccl": "2.28.9"}, "figures": figures()}
    (tmp_path / "data.json").write_text(json.dumps(content))
    assert recorded("data", tmp_path) == {"2 x NVIDIA H200, NCCL 2.28.9": figures()}


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (lambda: draw.bucket_order(Log()), "0 events"),
        (lambda: draw.bucket_order(Log([call(0, 0, 0, 1, "int64")])), "0 all_reduce calls of gradients"),
        (lambda: draw.bucket_curve({}), "0 curves: give 1 to 4"),
    ],
)
def test_bad_input_is_answered_with_the_numbers_and_the_fix(picture, words):
    with pytest.raises(ValueError, match=words):
        picture()
