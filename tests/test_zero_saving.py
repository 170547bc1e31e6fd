"""Saved by p ranks of one stage, read by q of another; saves that are cut off at any moment."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import sys
import time

import pytest
import torch
import torch.distributed as dist
from rig import Team, run_ranks
from torch import nn
from zero_cases import advance, largest_error, make, new_model, on_one_device, state_of

from tpcourse.zero import Zero2, load, read, save

FIRST, LAST = 3, 5  # steps before the save, and in all


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
        advance(zero, rank, group, steps=range(FIRST, LAST))
        with zero.whole():
            found.append(state_of(zero.module))
    return found


def on(p, fn, *args):
    """`fn` on p ranks, or here on one device."""
    return [fn(0, None, *args)] if p == 1 else run_ranks(fn, p, *args)


@pytest.mark.parametrize(("p", "stage"), [(1, 1), (2, 3), (3, 2), (4, 3)])
def test_what_any_stage_saves_on_p_ranks_goes_on_in_any_stage_on_q_ranks_as_on_one_device(p, stage, tmp_path):
    on(p, _first, str(tmp_path), stage)
    expected, _ = on_one_device(LAST)
    for q in (1, 2, 3) if p > 1 else (1, 4):
        for found in on(q, _rest, str(tmp_path), (1, 2, 3) if q < 3 else (3,)):
            assert all(largest_error(state, expected) <= 1e-12 for state in found)


def test_moments_that_are_lost_on_reload_end_in_other_weights(tmp_path):
    run_ranks(_first, 2, str(tmp_path), 3)
    expected, _ = on_one_device(LAST)
    for (state,) in run_ranks(_rest, 2, str(tmp_path), (2,), True):
        assert largest_error(state, expected) > 1e-6


def test_a_save_is_read_into_one_device_as_a_state_dict(tmp_path):
    run_ranks(_first, 3, str(tmp_path), 3)
    model, expected = new_model(seed=3), on_one_device(FIRST)[0]
    model.load_state_dict(read(tmp_path), strict=False)
    assert largest_error(state_of(model), expected) <= 1e-12


def small(seed=0, width=5, dtype=torch.float32):
    torch.manual_seed(seed)
    zero = Zero2(nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width)).to(dtype), dp=None, lr=0.01)
    zero.module(torch.randn(4, 3, dtype=dtype)).square().sum().backward()
    zero.step()
    return zero


def everything(zero):
    states = {f"{kind} of {n}": t for n, s in enumerate(zero.optimizer.state.values()) for kind, t in s.items()}
    masters = {f"master {n}": flat.master for n, flat in enumerate(zero.flats)}
    return {name: tensor.clone() for name, tensor in (zero.module.state_dict() | states | masters).items()}


def alike(zero, values):
    here = everything(zero)
    return here.keys() == values.keys() and all(torch.equal(here[name], values[name]) for name in values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_loaded_is_what_was_saved_to_the_bit_and_so_are_the_options(dtype, tmp_path):
    zero, other = small(dtype=dtype), small(1, dtype=dtype)
    zero.optimizer.param_groups[0].update(lr=0.3, betas=(0.7, 0.8))
    save(zero, tmp_path)
    load(other, tmp_path)
    assert alike(other, everything(zero))
    assert torch.equal(read(tmp_path)["0.weight"].to(dtype), zero.module[0].weight)
    assert other.optimizer.param_groups[0]["betas"] == (0.7, 0.8) and other.optimizer.param_groups[0]["lr"] == 0.3


def test_a_second_save_replaces_the_first_and_leaves_nothing_of_it(tmp_path):
    save(small(), tmp_path)
    shutil.copytree(next(tmp_path.glob("zero-*")), tmp_path / "zero-0123456789ab")  # by a save that was killed
    (tmp_path / "zero-mine").mkdir()
    first = set(os.listdir(tmp_path))
    save(small(1), tmp_path)
    assert set(os.listdir(tmp_path)) & first == {"index.json", "zero-mine"} and len(os.listdir(tmp_path)) == 3


def _columns(rank, group, folder):
    """A grid of 2 x 2, where each tp rank saves to a folder of its own: errors of what a twin of it loads."""
    made = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    dp, folder = made[rank % 2], f"{folder}/tp-{rank % 2}"
    zero = make(3, new_model(seed=rank % 2), dp)
    save(zero, folder)
    twin = make(2, new_model(seed=5), dp)
    load(twin, folder)
    with zero.whole():
        return largest_error(state_of(twin.module), state_of(zero.module))


def test_on_a_grid_each_group_saves_to_a_folder_of_its_own(tmp_path):
    assert run_ranks(_columns, 4, str(tmp_path)) == [0] * 4
    a, b = (read(tmp_path / f"tp-{rank}") for rank in (0, 1))
    assert not torch.equal(a["enter.weight"], b["enter.weight"])


ROUND = 1_000_000


def _save_for_ever(rank, group, folder, first):
    """Saves first, first + 1, ...: all weights and moments of save k are k."""
    zero = make(3, new_model(), group)
    zero.optimizer.step()
    for number in range(first, first + ROUND):
        for flat in zero.flats:
            flat.master.fill_(number)
            zero.optimizer.state[flat.master] = {"exp_avg": torch.full_like(flat.master, number)}
        save(zero, folder)


def test_after_a_kill_at_any_moment_the_last_whole_save_loads(tmp_path):
    """Twenty times: two ranks save again and again, and are killed."""
    moments = random.Random(0)
    for number in range(20):
        call = pickle.dumps((list(sys.path), pickle.dumps((_save_for_ever, (str(tmp_path), number * ROUND)))))
        team = Team(2)
        try:
            for connection in team.connections:
                connection.send_bytes(call)
            index = tmp_path / "index.json"
            before = index.read_text() if index.exists() else ""
            while not index.exists() or index.read_text() == before:  # the first save of this round
                assert team.is_open and not any(connection.poll() for connection in team.connections), "they save"
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.05))
        finally:
            team.close()
        assert json.loads(index.read_text())["files"]
        stepped = [w for name, w in read(tmp_path).items() if not name.startswith(("frozen", "scale"))]
        values = set(torch.cat([w.flatten() for w in stepped]).tolist())
        assert len(values) == 1, "one save, and not parts of two"
        assert values.pop() // ROUND == number, "the last that was whole, and not one of an earlier round"
    save(small(), tmp_path)
    assert len(os.listdir(tmp_path)) == 2, "what the killed ones left is gone"
