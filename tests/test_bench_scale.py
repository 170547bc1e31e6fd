"""`tpcourse bench scale`: groups of every size do the same work, and each part has a row for each number of ranks."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch.distributed as dist
from rig import run_ranks
from test_overlap_choice import NOISE, measured, size_of

from tpcourse.cli.bench import scale, scale_here
from tpcourse.cli.bench.overlap_variants import GATHER, SCATTER, Shape
from tpcourse.overlap.choice import fastest

P = 4


def _measured(rank, group):
    return scale_here.measure_here(1)


@cache
def found():
    """What the first of four ranks reports; it is plain data."""
    return json.loads(json.dumps(run_ranks(_measured, P, timeout=180)[0]))


def _groups(rank, group):
    """This rank's neighbours by size."""
    groups = scale_here.groups_by_size()
    return {p: dist.get_process_group_ranks(one) if one else [rank] for p, one in groups.items()}


def test_a_rank_is_in_one_group_of_neighbours_of_each_size():
    right = [{1: [r], 2: [r // 2 * 2, r // 2 * 2 + 1], 4: [0, 1, 2, 3]} for r in range(P)]
    assert run_ranks(_groups, P) == right


def test_every_part_has_a_row_for_each_number_of_ranks():
    assert {one["p"] for one in found()["bus"]} == {one["p"] for one in found()["pair"]} == {2, 4}
    modes = {(one["mode"], one["p"]) for one in found()["model"]}
    assert modes == {("one device", 1), *((m, p) for m in ("TP", "TP + SP", "TP + SP + overlap") for p in (2, 4))}
    assert {(one["stage"], one["p"]) for one in found()["zero"]} == {(s, p) for s in (1, 2, 3) for p in (1, 2, 4)}
    shapes = {(one["kind"], one["p"], *one["shape"]) for one in found()["problems"]}
    assert shapes == {
        (GATHER, 2, 48, 32, 24), (GATHER, 4, 48, 32, 24), (GATHER, 4, 48, 32, 12),
        (SCATTER, 2, 48, 24, 32), (SCATTER, 4, 48, 24, 32), (SCATTER, 4, 48, 12, 32),
    }  # fmt: skip


def test_the_loss_is_the_same_at_every_number_of_ranks():
    losses = [one["loss"] for one in found()["model"]]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)


def test_bytes_a_weight_are_the_formulas():
    for one in found()["zero"]:
        shared = {1: 12, 2: 14, 3: 16}[one["stage"]]
        assert one["bytes_per_weight"] == pytest.approx(16 - shared + shared / one["p"], rel=0.02), one


def test_every_form_computes_what_the_plain_one_does_in_groups_too():
    for one in found()["problems"]:
        assert max(one["errors"].values()) < 1e-5 and {"serial", "ring", "auto"} <= set(one["errors"])


def test_a_share_is_a_rank_s_part_of_what_two_have_together():
    assert scale_here.share_of(GATHER, Shape(16, 8, 12), 4) == Shape(16, 8, 6)
    assert scale_here.share_of(SCATTER, Shape(16, 8, 12), 8) == Shape(16, 2, 12)
    assert scale_here.share_of(GATHER, Shape(16, 8, 12), 2) == Shape(16, 8, 12)


def test_the_table_has_every_row_and_ratios_against_one_device():
    result = scale.summary(found())
    alone = next(one["ms"] for one in found()["model"] if one["mode"] == "one device")
    assert all(one["over_one"] == one["ms"] / alone for one in result.figures["model"])
    assert all(len(row) == len(scale.COLUMNS) for row in result.rows)
    assert {row[2] for row in result.rows} == {1, 2, 4} and "problems" not in result.figures
    assert len([row for row in result.rows if row[-1] == "E"]) == len(result.figures["overlap"])
    assert result.table()


def test_the_command_measures_on_ranks_of_its_own(monkeypatch):
    asked = []
    monkeypatch.setattr(scale, "on_bare_ranks", lambda *args: asked.append(args) or found())
    assert scale.measure(3).figures["p"] == P and asked == [("scale_here", "measure_here", 3)]


@pytest.mark.skipif(not measured("scale"), reason="no run on GPUs is recorded")
@pytest.mark.parametrize("has_peers", [True, False])
def test_what_auto_takes_at_two_and_four_gpus_was_not_slower_than_serial_when_measured(has_peers):
    for (kind, shape, p), ms in measured("scale").items():
        form, pieces = fastest(size_of(kind, shape, p), has_peers, is_captured=True)
        name = form if pieces is None or form != "peer" else "auto"  # which took those pieces
        assert ms[name] <= NOISE * ms["serial"], (kind, shape, p, form, pieces)


def test_at_four_ranks_a_layer_that_the_cpu_would_launch_longer_than_it_computes_is_serial():
    """`scale` measured a step of 34.5 ms with peer copies, which `auto` took then, and of 24.9 without."""
    for kind, into, out in (("gather", 8192, 7168), ("scatter", 7168, 8192), ("gather", 8192, 2048)):
        assert fastest(size_of(kind, (4096, into, out), 4), True) == ("serial", None)
        assert fastest(size_of(kind, (4096, into, out), 4), True, is_captured=True)[0] == "peer"
