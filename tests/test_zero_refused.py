"""Folders that are not as they should be are refused on every rank, and nothing changes; disks that are full."""

from __future__ import annotations

import re
import resource
import shutil
from pathlib import Path

import pytest
import torch.distributed as dist
from rig import run_ranks
from test_zero_saving import _first, alike, everything, small
from torch import nn
from zero_cases import advance, largest_error, make, new_model, state_of

from tpcourse.zero import Zero2, load, read, save


def _truncate(path: Path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _of_another_save(path: Path):
    """A file of the same size, in which all is as it should be but the mark."""
    shutil.copy(next(Path(f"{path.parents[1]}-other").glob(f"zero-*/{path.name}")), path)


def _filled(path: Path):
    path.write_bytes(b"x" * path.stat().st_size)


FAULTS = {
    "missing": (Path.unlink, " is missing, but the index names it"),
    "truncated": (_truncate, r" has \d+ bytes, but \d+ were written"),
    "empty": (lambda path: path.write_bytes(b""), r" has 0 bytes, but \d+ were written"),
    "of another save": (_of_another_save, " does not belong to this save"),
    "foreign": (_filled, " cannot be read"),
}
FILES = ("__0_0.distcp", "__1_0.distcp", ".metadata")


def _refused(rank, group, folder, faults):
    """What a rank hears of each fault, and whether anything changed; the folder is mended in between."""
    zero, found = make(2, new_model(seed=9), group), {}
    advance(zero, rank, group, steps=range(1))
    before, sound = everything(zero), f"{folder}-sound"
    for name, fault in faults:
        dist.barrier(group)
        if rank == 0:
            shutil.rmtree(folder)
            shutil.copytree(sound, folder)
            FAULTS[fault][0](next(Path(folder).glob(f"zero-*/{name}")))
        dist.barrier(group)
        with pytest.raises(ValueError, match=rf"{re.escape(name)}{FAULTS[fault][1]}") as error:
            load(zero, folder)
        found[name, fault] = str(error.value), alike(zero, before)
    return found


def test_a_file_that_is_not_as_it_was_written_is_named_on_every_rank_and_nothing_changes(tmp_path):
    folder = str(tmp_path / "save")
    for each in (folder, f"{folder}-other"):
        run_ranks(_first, 2, each, 3)
    shutil.copytree(folder, f"{folder}-sound")
    first, second = run_ranks(_refused, 2, folder, [(name, fault) for name in FILES for fault in FAULTS])
    assert first == second, "both hear of it"
    assert all(untouched for _, untouched in first.values())


INDEXES = {
    "missing": (Path.unlink, r"index\.json is missing: nothing is saved"),
    "truncated": (_truncate, r"index\.json cannot be read"),
    "of something else": (lambda path: path.write_text('{"a": 1}'), r"index\.json is not the index of a save"),
    "a list": (lambda path: path.write_text("[]"), r"index\.json is not the index of a save"),
}


@pytest.mark.parametrize("fault", INDEXES)
def test_an_index_that_is_not_as_it_was_written_is_named_and_nothing_changes(fault, tmp_path):
    save(small(), tmp_path)
    spoil, words = INDEXES[fault]
    spoil(tmp_path / "index.json")
    zero = small(2)
    before = everything(zero)
    with pytest.raises(ValueError, match=words):
        load(zero, tmp_path)
    assert alike(zero, before)


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


def _disk_is_full(rank, group, folder, on):
    """Both ranks save; on one of them no file may grow beyond some bytes."""
    zero = make(2, new_model(seed=3), group)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == on:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(ValueError, match=rf"cannot write .*rank {on}: ") as error:
            save(zero, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return str(error.value)


def test_a_disk_that_is_full_is_told_to_all_ranks_and_leaves_the_last_save(tmp_path):
    run_ranks(_first, 2, str(tmp_path), 2)
    before, files = read(tmp_path), sorted(tmp_path.rglob("*"))
    for on in (0, 1):
        first, second = run_ranks(_disk_is_full, 2, str(tmp_path), on)
        assert first == second
    assert sorted(tmp_path.rglob("*")) == files
    assert largest_error(read(tmp_path), before) == 0
