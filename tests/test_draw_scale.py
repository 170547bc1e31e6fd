"""Lines by the number of GPUs: what the recording says, at the right places, and every name readable."""

from itertools import pairwise

import pytest
from test_draw_helpers import faults, marked

from tpcourse import draw
from tpcourse.draw.scale import NONE, PARTS

PS, MACHINE = (2, 4, 8), "8 x NVIDIA H200, NCCL 2.28.9"
SMALL, LARGE = "h 512, F 2048, 12 layers", "h 8192, F 28672, 2 layers"
OVER_ONE = {
    SMALL: {"TP": (1.9, 2.1, 2.4), "TP + SP": (2.2, 2.5, 2.9), "TP + SP + overlap": (2.6, 3.0, 3.6)},
    LARGE: {"TP": (0.58, 0.36, 0.27), "TP + SP": (0.57, 0.35, 0.26), "TP + SP + overlap": (0.54, 0.31, 0.22)},
}
BUS = {"all_reduce": (360, 365, 445), "all_gather": (330, 345, 352), "reduce_scatter": (335, 350, 358)}
PAIR = {(8192, 8192): (1.02, 1.03, 1.05), (8192, 4096): (1.03, 1.06, 1.1), (2048, 2048): (1.2, 1.31, 1.42)}
E_OF = {
    "gather_product": {"ring": (0.2, -0.31, -0.9), "peer": (0.91, 0.86, 0.7), "auto": (0.97, 0.92, 0.83)},
    "product_scatter": {"ring": (0.15, -0.4, -1.1), "peer": (0.8, 0.75, None), "auto": (0.82, 0.78, 0.66)},
}
ZERO = {1: (16, 10, 7, 5.5), 2: (16, 9, 5.5, 3.75), 3: (16, 8, 4, 2)}


def overlap_rows():
    """One shape at every p, with serial and torch's beside ours; a second one, of another E, at p above 2."""
    for kind, ways in E_OF.items():
        for way, found in (ways | {"serial": (0.0,) * 3, "torch's fused": (0.9,) * 3}).items():
            for p, hidden in zip(PS, found):
                row = {"kind": kind, "dtype": "bfloat16", "p": p, "variant": way, "ms": 2.0}
                yield row | {"shape": [16384, 8192, 4096], "hidden": hidden}
                if p > 2:
                    yield row | {"shape": [16384, 8192, 8192 // p], "hidden": -7.0}


def bus_rows():
    """Three sizes; the smaller ones are slower."""
    for op, found in BUS.items():
        for p, speed in zip(PS, found):
            for size in (2**20, 2**26, 2**30):
                yield {"op": op, "num_bytes": size, "p": p, "us": 9.0, "bus_GBps": speed * size / 2**30}


def figures(**more):
    model = [{"model": name, "mode": "one device", "p": 1, "ms": 20.0, "over_one": 1.0} for name in OVER_ONE]
    model += [
        {"model": name, "mode": mode, "p": p, "ms": 20.0 * ratio, "over_one": ratio}
        for name, modes in OVER_ONE.items()
        for mode, found in modes.items()
        for p, ratio in zip(PS, found)
    ]
    pair = [
        {"tokens": T, "D": D, "F": 4 * D, "p": p,
         "ms": {"products": 3.0, "all-reduce pair": 4.0, "gather/scatter pair": 4.0 * ratio}}
        for (T, D), found in PAIR.items()
        for p, ratio in zip(PS, found)
    ]  # fmt: skip
    zero = [
        {"stage": stage, "p": p, "ms": 200.0, "bytes_per_weight": size, "peak_GB": 30.0}
        for stage, found in ZERO.items()
        for p, size in zip((1, *PS), found)
    ]
    parts = {"bus": list(bus_rows()), "model": model, "pair": pair, "overlap": list(overlap_rows()), "zero": zero}
    return {"backend": "nccl", "p": 8, **parts, **more}


def lines_of(part, **more):
    return draw.recorded_scale(part, {MACHINE: figures(**more)})[0]


def points(found, ps=PS):
    return {p: value for p, value in zip(ps, found) if value is not None}


def close(lines):
    return {name: pytest.approx(line) for name, line in lines.items()}


def test_bandwidth_is_that_of_the_largest_size():
    assert lines_of("bus") == close({op: points(found) for op, found in BUS.items()})


def test_every_model_with_and_without_split_tokens_starts_at_one_device():
    assert lines_of("model") == {
        f"{name}: {mode}": {1: 1.0} | points(modes[mode])
        for name, modes in OVER_ONE.items()
        for mode in ("TP", "TP + SP")
    }


def test_a_pair_is_its_time_over_that_of_the_all_reduce_pair():
    assert lines_of("pair") == close({f"{T} tokens, h {D}": points(found) for (T, D), found in PAIR.items()})


def test_overlap_is_of_ring_and_peer_at_the_shape_that_every_number_has_and_without_what_has_no_e():
    names = {"gather_product": "gather + product", "product_scatter": "product + scatter"}
    right = {f"{names[kind]}: {way}": points(ways[way]) for kind, ways in E_OF.items() for way in ("ring", "peer")}
    assert lines_of("overlap") == right and 8 not in right["product + scatter: peer"]


def test_two_shapes_that_every_number_has_are_lines_of_their_own():
    row = {"kind": "gather_product", "variant": "ring"}
    both = [row | {"shape": [8, 4, n], "p": p, "hidden": n / p} for n in (2, 6) for p in (2, 4)]
    names = [f"gather + product: ring, 8 x 4 x {n}" for n in (2, 6)]
    assert lines_of("overlap", overlap=both) == dict(zip(names, ({2: 1, 4: 0.5}, {2: 3, 4: 1.5})))


def test_zero_is_bytes_a_weight_from_one_gpu_on():
    assert lines_of("zero") == {f"stage {stage}": points(found, (1, *PS)) for stage, found in ZERO.items()}


def test_the_title_is_the_machine_of_the_run_on_gpus():
    recordings = {"4 ranks on a CPU": figures(backend="gloo"), MACHINE: figures()}
    assert all(draw.recorded_scale(part, recordings)[1] == MACHINE for part in PARTS)


@pytest.mark.parametrize("recordings", [{}, {MACHINE: figures()}])
def test_an_unknown_part_is_an_error_that_names_the_parts(recordings):
    with pytest.raises(ValueError, match="part 'bandwidth': give one of bus, model, pair, overlap, zero"):
        draw.recorded_scale("bandwidth", recordings)


@pytest.mark.parametrize("recordings", [{}, {"4 ranks on a CPU": figures(backend="gloo")}])
def test_without_a_recorded_run_on_gpus_the_picture_says_so_in_one_line(recordings):
    lines, title = draw.recorded_scale("bus", recordings)
    ax = draw.by_ranks(lines, title)
    assert lines == {} and ax.get_title(loc="left") == title == NONE and NONE.endswith("makes one on 4 GPUs.")
    assert not ax.axison and faults(ax) == []


@pytest.mark.parametrize("part", PARTS)
def test_a_picture_has_a_line_for_each_name_through_its_values_and_every_name_can_be_read(part):
    lines, title = draw.recorded_scale(part, {MACHINE: figures()})
    ax = draw.by_ranks(lines, title, ylabel="value")
    ps = [int(tick.get_text()) for tick in ax.get_xticklabels()]
    found = {line.get_label(): dict(zip(ps, line.get_ydata())) for line in marked(ax, "line")}
    assert {name: {p: y for p, y in line.items() if y == y} for name, line in found.items()} == lines
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(lines)
    assert ps == sorted({p for line in lines.values() for p in line}) and ax.get_xlabel() == "GPUs"
    assert all([round(x) for x in line.get_xdata()] == list(range(len(ps))) for line in marked(ax, "line"))
    assert faults(ax) == []


def test_equal_values_do_not_hide_each_other():
    lines = {f"line {k}": {1: 1.0, 2: 0.5} for k in range(8)}
    at = [line.get_xdata()[0] for line in marked(draw.by_ranks(lines), "line")]
    assert len(set(at)) == 8 and max(at) < 0.15 and sum(at) == pytest.approx(0)


def test_eight_lines_differ_in_mark_and_neighbours_in_tone_and_nine_are_refused():
    lines = {f"a name of some length, number {k}": {2: k, 4: k + 1} for k in range(8)}
    ax = draw.by_ranks(lines, "title", ylabel="value")
    assert len({line.get_marker() for line in marked(ax, "line")}) == 8
    tones = [line.get_color() for line in marked(ax, "line")]
    assert all(one != next_one for one, next_one in pairwise(tones))
    assert faults(ax) == []
    with pytest.raises(ValueError, match="9 lines: give at most 8"):
        draw.by_ranks(lines | {"one more": {2: 1}})


def test_the_ideal_is_dashed_and_named():
    ax = draw.by_ranks({"TP": {1: 1.0, 2: 0.6, 4: 0.4}}, ideal=lambda p: 1 / p)
    (ideal,) = marked(ax, "ideal")
    assert list(ideal.get_ydata()) == [1, 0.5, 0.25] and ideal.is_dashed()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ideal", "TP"]
    assert marked(draw.by_ranks({"TP": {1: 1.0}}), "ideal") == []


def test_heights_start_at_zero_and_the_ideal_is_within_them():
    ax = draw.by_ranks({"bus": {2: 300.0, 4: 310.0}}, ideal=lambda p: 450.0)
    low, high = ax.get_ylim()
    assert low == 0 and high > 450 and marked(ax, "zero") == []


def test_what_is_negative_is_seen_above_the_edge_with_a_line_at_zero():
    ax = draw.by_ranks({"ring": {2: 0.5, 4: -0.8}})
    assert -1.2 < ax.get_ylim()[0] < -0.8
    assert [list(line.get_ydata()) for line in marked(ax, "zero")] == [[0, 0]]


@pytest.mark.parametrize("line", [{4: 3.0}, {1: 0.0}])
def test_a_single_number_of_gpus_is_points_only(line):
    ax = draw.by_ranks({"one": line})
    assert len(ax.get_xticks()) == 1 and ax.get_ylim()[0] == 0 < ax.get_ylim()[1]
    assert faults(ax) == []


def test_it_draws_into_axes_that_are_given():
    given = draw.by_ranks({"one": {1: 1.0}})
    given.clear()
    assert draw.by_ranks({"two": {1: 2.0}}, ax=given) is given
