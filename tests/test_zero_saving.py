"""Saved by p ranks of one stage, read by q of another; folders that are not as they should be; saves cut off."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch
from rig import Team, run_ranks
from torch import nn
from zero_cases import STEPS, advance, largest_error, make, new_model, on_one_device, state_of

from tpcourse.zero import Zero2, load, read, save

FIRST = 4  # steps before the save


def _first(rank, group, folder, stage):
    zero = make(stage, new_model(), group)
    advance(zero, rank, group, steps=range(FIRST))
    zero.optimizer.param_groups[0]["lr"] = 0.01
    save(zero, folder)


def _rest(rank, group, folder, stages, forget=False):
    """The weights after the other steps, for each stage, from models of other weights and rates."""
    found = []
    for stage in stages:
        zero = make(stage, new_model(seed=5 + rank), group, lr=0.7, bucket_mb=0.001)
        load(zero, folder)
        if forget:
            zero.optimizer.state.clear()
        advance(zero, rank, group, steps=range(FIRST, STEPS))
        with zero.whole():
            found.append(state_of(zero.module))
    return found


def on(p, fn, *args):
    """`fn` on p ranks, or here on one device."""
    return [fn(0, None, *args)] if p == 1 else run_ranks(fn, p, *args)


@pytest.mark.parametrize(("p", "stage"), [(1, 1), (2, 3), (3, 2), (4, 3)])
def test_what_any_stage_saves_on_p_ranks_goes_on_in_any_stage_on_q_ranks_as_on_one_device(p, stage, tmp_path):
    on(p, _first, str(tmp_path), stage)
    expected, _ = on_one_device()
    for q in (1, 2, 3) if p > 1 else (1, 4):
        for found in on(q, _rest, str(tmp_path), (1, 2, 3) if q < 3 else (3,)):
            assert all(largest_error(state, expected) <= 1e-12 for state in found)


def test_moments_that_are_lost_on_reload_end_in_other_weights(tmp_path):
    run_ranks(_first, 2, str(tmp_path), 3)
    expected, _ = on_one_device()
    for (state,) in run_ranks(_rest, 2, str(tmp_path), (2,), True):
        assert largest_error(state, expected) > 1e-6


def test_a_save_is_read_into_one_device_as_a_state_dict(tmp_path):
    run_ranks(_first, 3, str(tmp_path), 3)
    model, expected = new_model(seed=3), on_one_device(FIRST)[0]
    model.load_state_dict(read(tmp_path), strict=False)
    assert largest_error(state_of(model), expected) <= 1e-12


def small(seed=0, width=5):
    torch.manual_seed(seed)
    zero = Zero2(nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width)), dp=None, lr=0.01)
    zero.module(torch.randn(4, 3)).square().sum().backward()
    zero.step()
    return zero


def everything(zero):
    states = [tensor for state in zero.optimizer.state.values() for tensor in state.values()]
    return [tensor.clone() for tensor in (*zero.module.state_dict().values(), *states)]


def test_a_second_save_replaces_the_first_and_leaves_nothing_of_it(tmp_path):
    save(small(), tmp_path)
    for left in ("pieces-1234-0-of-2.pt", "pieces-1234-1-of-2.pt.part"):  # by a save that was killed
        (tmp_path / left).touch()
    first = set(os.listdir(tmp_path))
    save(small(1), tmp_path)
    assert set(os.listdir(tmp_path)) & first == {"index.json"} and len(os.listdir(tmp_path)) == 2


def _truncate(path: Path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _of_another_save(path: Path):
    save(small(), path.parent / "other")
    shutil.copy(next((path.parent / "other").glob("*.pt")), path)


def _without_a_piece(path: Path):
    part = torch.load(path, weights_only=True)
    start, values = part["pieces"]["0.weight"][0]
    part["pieces"]["0.weight"] = [(start, {k: v[:8].clone() if v.dim() else v for k, v in values.items()})]
    torch.save(part, path)


FILES = {
    "missing": (Path.unlink, r"\.pt is missing, but the index names it"),
    "truncated": (_truncate, r"\.pt cannot be read, it may be truncated"),
    "empty": (lambda path: path.write_bytes(b""), r"\.pt cannot be read"),
    "of another save": (_of_another_save, r"\.pt does not belong to this save"),
    "no dict": (lambda path: torch.save(torch.zeros(3), path), r"\.pt does not belong to this save"),
    "without a piece": (_without_a_piece, r"7 elements of 0\.weight are in no file"),
}
INDEXES = {
    "missing": (Path.unlink, r"index\.json is missing: nothing is saved"),
    "truncated": (_truncate, r"index\.json cannot be read"),
    "of something else": (lambda path: path.write_text('{"a": 1}'), r"index\.json is not the index of a save"),
    "a list": (lambda path: path.write_text("[]"), r"index\.json is not the index of a save"),
}


@pytest.mark.parametrize(("pattern", "fault"), [*(("*.pt", f) for f in FILES), *(("index.json", f) for f in INDEXES)])
def test_a_file_that_is_not_as_it_was_written_is_named_and_nothing_changes(pattern, fault, tmp_path):
    save(small(), tmp_path)
    file = next(tmp_path.glob(pattern))
    spoil, words = (FILES if pattern == "*.pt" else INDEXES)[fault]
    spoil(file)
    zero = small(2)
    before = everything(zero)
    with pytest.raises(ValueError, match=words) as error:
        load(zero, tmp_path)
    assert file.name in str(error.value) or "elements" in words
    assert all(torch.equal(a, b) for a, b in zip(before, everything(zero), strict=True))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: small(width=6), r"another module: 0\.bias is \[5\] there, and \[6\] here"),
        (lambda: Zero2(nn.Sequential(nn.Linear(3, 5)), dp=None), r"1\.bias is \[5\] there, and missing here"),
        (lambda: _regrouped(), "has 1 parameter groups, and here are 2"),
        (lambda: _frozen(), r"1\.bias is \[5\] there, and missing here"),
    ],
)
def test_a_save_of_another_module_is_refused(other, words, tmp_path):
    save(small(), tmp_path)
    with pytest.raises(ValueError, match=words):
        load(other(), tmp_path)


def _regrouped():
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    return Zero2(module, dp=None, groups=[{"params": module[0].parameters()}, {"params": module[1].parameters()}])


def _frozen():
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    module[1].requires_grad_(False)
    return Zero2(module, dp=None)


def _one_rank_lacks(rank, group, folder):
    """Only rank 1 reads a folder that is not there: both are told, and neither changes."""
    zero = make(2, new_model(), group)
    save(zero, folder)
    before = state_of(zero.module)
    with pytest.raises(ValueError, match=r"^rank 1: .*nowhere.index\.json is missing"):
        load(zero, folder if rank == 0 else f"{folder}/nowhere")
    return largest_error(state_of(zero.module), before)


def test_a_fault_on_one_rank_is_raised_on_all_of_them(tmp_path):
    assert run_ranks(_one_rank_lacks, 2, str(tmp_path)) == [0, 0]


def _save_for_ever(rank, group, folder):
    """Saves 0, 1, 2, ...: all weights and moments of save k are k."""
    zero = make(3, new_model(), group)
    zero.optimizer.step()
    for number in range(1_000_000):
        for flat in zero.flats:
            flat.master.fill_(number)
            zero.optimizer.state[flat.master] = {"exp_avg": torch.full_like(flat.master, number)}
        save(zero, folder)


def test_after_a_kill_at_any_moment_the_last_whole_save_loads(tmp_path):
    """Twenty times: two ranks save again and again, and are killed."""
    moments = random.Random(0)
    call = pickle.dumps((list(sys.path), pickle.dumps((_save_for_ever, (str(tmp_path),)))))
    seen = []
    for _ in range(20):
        team = Team(2)
        try:
            for connection in team.connections:
                connection.send_bytes(call)
            start = time.monotonic()
            index = tmp_path / "index.json"
            before = index.read_text() if index.exists() else ""
            while (not index.exists() or index.read_text() == before) and time.monotonic() < start + 30:
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.05))
        finally:
            team.close()
        stepped = [w for name, w in read(tmp_path).items() if not name.startswith(("frozen", "scale"))]
        values = set(torch.cat([w.flatten() for w in stepped]).tolist())
        assert len(values) == 1, "one save, and not parts of two"
        seen.append(values.pop())
        assert json.loads(index.read_text())["files"]
    assert max(seen) > 0 and len(seen) == 20
    save(small(), tmp_path)
    assert len(os.listdir(tmp_path)) == 2, "what the killed ones left is gone"
