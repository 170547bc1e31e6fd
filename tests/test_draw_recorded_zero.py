"""The picture of memory against time: a point for each variant, where the recording says, all names readable."""

import pytest
from test_draw_helpers import drawn, faults, marked

from tpcourse import draw
from tpcourse.draw.recorded_zero import NONE, OFF, ON

NAMES = {
    "DDP": "torch's", "ZeroRedundancyOptimizer": "torch's", "fully_shard": "torch's", "stage 1": "ours",
    "stage 2": "ours", ON: "ours", OFF: "ours",
}  # fmt: skip


def rows(points):
    """Rows as the bench makes them; points are (ms, GB) in the order of NAMES."""
    named = zip(NAMES.items(), points, strict=False)
    return [{"name": name, "whose": whose, "ms": ms, "peak_GB": gb} for (name, whose), (ms, gb) in named]


SPREAD = rows([(610, 36), (640, 30), (655, 27), (600, 31), (605, 29), (650, 26.5), (700, 26)])
EQUAL = rows([(500, 20)] * 7)
ABOVE = rows([(500 + k, 30 + 0.01 * k) for k in range(6)] + [(500, 1)])


def figures(backend="nccl"):
    return {"backend": backend, "p": 2, "num_parameters": 1_100_000_000, "rows": SPREAD}


@pytest.mark.parametrize("case", [SPREAD, EQUAL, ABOVE, SPREAD[:1]])
def test_each_variant_is_a_mark_at_its_time_and_peak_and_every_name_can_be_read(case):
    ax = draw.memory_and_time(case, "1.1 B parameters, 2 x NVIDIA H200, NCCL 2.28.9")
    for whose in ("ours", "torch's"):
        found = sorted((line.get_xdata()[0], line.get_ydata()[0]) for line in marked(ax, whose))
        assert found == sorted((row["ms"], row["peak_GB"]) for row in case if row["whose"] == whose)
    assert {text.get_text().removesuffix(" (torch)") for text in marked(ax, "name")} == {row["name"] for row in case}
    assert faults(ax) == []


def test_ours_and_torchs_have_other_marks_and_labels():
    ax = draw.memory_and_time(SPREAD)
    assert {line.get_marker() for line in marked(ax, "ours")}.isdisjoint(l.get_marker() for l in marked(ax, "torch's"))
    named = {text.get_text() for text in marked(ax, "name")}
    assert {"fully_shard (torch)", "stage 3"} <= named and "fully_shard" not in named


def test_a_line_leads_from_each_name_to_its_own_mark():
    ax = draw.memory_and_time(SPREAD)
    ends = {line.xyann[1]: line.xy for line in marked(ax, "line")}
    found = {text.get_text().removesuffix(" (torch)"): ends[text.get_position()[1]] for text in marked(ax, "name")}
    assert found == {row["name"]: (row["ms"], row["peak_GB"]) for row in SPREAD}


def test_one_arrow_leads_from_prefetch_off_to_on_if_both_are_there():
    (arrow,) = marked(draw.memory_and_time(SPREAD), "prefetch")
    assert (arrow.xyann, arrow.xy) == ((700, 26), (650, 26.5))
    assert marked(draw.memory_and_time(SPREAD[:-1]), "prefetch") == []


def test_rows_are_those_of_a_run_on_gpus_under_its_model_and_machine():
    found, title = draw.recorded_stages({"2 x NVIDIA H200, NCCL 2.28.9": figures()})
    assert found == SPREAD and title == "1.1 B parameters, 2 x NVIDIA H200, NCCL 2.28.9"


@pytest.mark.parametrize("recordings", [{}, {"4 ranks on a CPU": figures("gloo")}])
def test_without_a_recording_of_gpus_the_picture_says_so(recordings):
    found, title = draw.recorded_stages(recordings)
    ax = draw.memory_and_time(found, title)
    assert found == [] and ax.get_title(loc="left") == title == NONE
    assert faults(ax) == []


def test_a_row_without_a_peak_is_refused_with_the_number_and_the_fix():
    with pytest.raises(ValueError, match="1 of 2 rows have no peak, such as 'DDP': give a run on GPUs"):
        draw.memory_and_time([SPREAD[0] | {"peak_GB": None}, SPREAD[1]])


def test_the_same_rows_make_the_same_picture_in_any_order():
    one, other = draw.memory_and_time(SPREAD), draw.memory_and_time(SPREAD[::-1])
    assert drawn(one).buffer_rgba().tobytes() == drawn(other).buffer_rgba().tobytes()
