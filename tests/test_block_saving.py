"""Saved by p ranks, read by q; and folders that are not as they should be."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from block_cases import CLASSIC, MODERN, random_state
from rig import run_ranks

from tpcourse.block import GPT, from_one_device, load, save, to_one_device

CONFIGS = {"modern": MODERN, "classic": CLASSIC}


def make(config, group=None, **options):
    """A model with random weights, in float64."""
    model = GPT(config, tp=group, dtype=torch.float64, **options)
    from_one_device(model, random_state(config))
    return model


def _save(rank, group, folder):
    for name, config in CONFIGS.items():
        model = make(config, group)
        model.forwards = 17
        save(model, Path(folder, name))


def _load(rank, group, folder):
    """What each model loaded, as one device's, and where its dropout was."""
    models = {name: GPT(config, tp=group, dtype=torch.float64) for name, config in CONFIGS.items()}
    for name, model in models.items():
        load(model, Path(folder, name))
    return {name: (to_one_device(model), model.forwards) for name, model in models.items()}


def on(p, fn, *args):
    """`fn` on p ranks, or here on one device."""
    return [fn(0, None, *args)] if p == 1 else run_ranks(fn, p, *args)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_what_p_ranks_save_any_number_of_ranks_reads_to_the_bit(p, tmp_path):
    on(p, _save, str(tmp_path))
    for q in (1, 2, 4):
        for found in on(q, _load, str(tmp_path)):
            for name, config in CONFIGS.items():
                state, forwards = found[name]
                expected = random_state(config)
                assert state.keys() == expected.keys() and forwards == 17
                assert all(torch.equal(state[weight], expected[weight]) for weight in expected)


def test_each_element_is_stored_once_also_where_ranks_share_it(tmp_path):
    run_ranks(_save, 4, str(tmp_path))
    for name, config in CONFIGS.items():
        files = sorted(Path(tmp_path, name).glob("*.pt"))
        parts = [torch.load(file, weights_only=True)["pieces"] for file in files]
        stored = sum(piece.numel() for part in parts for pieces in part.values() for _, piece in pieces)
        assert len(files) == 4 and stored == sum(whole.numel() for whole in random_state(config).values())
        assert max(file.stat().st_size for file in files) < 8 * stored, "no view drags its whole storage along"


def test_a_second_save_replaces_the_first_and_leaves_nothing_of_it(tmp_path):
    model = make(MODERN)
    save(model, tmp_path)
    first = set(os.listdir(tmp_path))
    with torch.no_grad():
        model.norm.weight.add_(1)
    save(model, tmp_path)
    assert set(os.listdir(tmp_path)) & first == {"index.json"} and len(os.listdir(tmp_path)) == 2
    other = make(MODERN)
    load(other, tmp_path)
    assert torch.equal(other.norm.weight, model.norm.weight)


CUTS = {"weights, written": (torch, "save", 1), "weights, renamed": (os, "replace", 1), "index": (os, "replace", 2)}


@pytest.mark.parametrize("where", CUTS)
def test_a_save_that_is_cut_off_leaves_the_old_one_whole(where, tmp_path, monkeypatch):
    model, old = make(MODERN), random_state(MODERN)
    save(model, tmp_path)
    before = sorted(os.listdir(tmp_path))
    from_one_device(model, random_state(MODERN, seed=1))
    (module, name, nth), calls = CUTS[where], []
    real = getattr(module, name)

    def cut_off(*args):
        calls.append(args)
        if len(calls) == nth:
            raise OSError("no space left on device")
        return real(*args)

    monkeypatch.setattr(module, name, cut_off)
    with pytest.raises(ValueError, match="no space left"):
        save(model, tmp_path)
    monkeypatch.undo()
    load(model, tmp_path)
    assert all(torch.equal(weight, old[name]) for name, weight in model.named_parameters())
    assert sorted(os.listdir(tmp_path)) == before


def _truncate(path: Path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _of_another_save(path: Path):
    save(make(MODERN), path.parent / "other")
    shutil.copy(next((path.parent / "other").glob("*.pt")), path)


def _without_a_piece(path: Path):
    part = torch.load(path, weights_only=True)
    part["pieces"]["norm.weight"] = [(0, part["pieces"]["norm.weight"][0][1][:5].clone())]
    torch.save(part, path)


WEIGHTS = {
    "missing": (Path.unlink, "is missing, but the index names it"),
    "truncated": (_truncate, "cannot be read, it may be truncated"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "of another save": (_of_another_save, "does not belong to this save"),
    "no dict": (lambda path: torch.save(torch.zeros(3), path), "does not belong to this save"),
}


@pytest.mark.parametrize("fault", WEIGHTS)
def test_a_file_of_weights_that_is_not_as_it_was_written_is_named_and_nothing_changes(fault, tmp_path):
    save(make(MODERN), tmp_path)
    file = next(tmp_path.glob("*.pt"))
    spoil, words = WEIGHTS[fault]
    spoil(file)
    model = GPT(MODERN, seed=3)
    with pytest.raises(ValueError, match=f"{re.escape(file.name)} {words}"):
        load(model, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), GPT(MODERN, seed=3).parameters(), strict=True))


def test_a_missing_piece_is_counted_and_its_weight_named(tmp_path):
    save(make(MODERN), tmp_path)
    _without_a_piece(next(tmp_path.glob("*.pt")))
    with pytest.raises(ValueError, match=r"19 elements of norm\.weight are in no file"):
        load(make(MODERN), tmp_path)


INDEXES = {
    "missing": (Path.unlink, r"index\.json is missing: no model is saved"),
    "truncated": (_truncate, r"index\.json cannot be read"),
    "of something else": (lambda path: path.write_text('{"a": 1}'), r"index\.json is not the index of a model"),
    "a list": (lambda path: path.write_text("[]"), r"index\.json is not the index of a model"),
    "without its files": (lambda path: _edit(path, "files"), r"index\.json is not the index of a model"),
}


def _edit(path: Path, without: str):
    index = json.loads(path.read_text())
    del index[without]
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("fault", INDEXES)
def test_an_index_that_is_not_ours_is_named(fault, tmp_path):
    save(make(MODERN), tmp_path)
    spoil, words = INDEXES[fault]
    spoil(tmp_path / "index.json")
    with pytest.raises(ValueError, match=words):
        load(make(MODERN), tmp_path)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(MODERN, tied=False), r"index\.json is of a model with tied = True, but this one has False"),
        (replace(MODERN, L=1), "of a model with L = 2, but this one has 1"),
        (replace(MODERN, rotary=False, T=5), "of a model with T = 11, but this one has 5"),
        (replace(MODERN, eps=1e-3), r"of a model with eps = 1e-05, but this one has 0\.001"),
        (replace(MODERN, H=6, kv_heads=1), "of a model with H = 12, but this one has 6"),
    ],
)
def test_a_save_of_another_model_is_refused(other, words, tmp_path):
    save(make(MODERN), tmp_path)
    with pytest.raises(ValueError, match=words):
        load(make(other), tmp_path)


def _load_spoilt(rank, group, folder):
    """What a rank says, and whether its model is as before, when one file of four is truncated, and read by two."""
    model = GPT(CLASSIC, tp=group, seed=3)
    before = [weight.detach().clone() for weight in model.parameters()]
    with pytest.raises(ValueError) as error:  # noqa: PT011 (compared outside)
        load(model, Path(folder, "classic"))
    return str(error.value), all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_every_rank_raises_if_one_cannot_read_and_keeps_its_weights(tmp_path):
    run_ranks(_save, 4, str(tmp_path))
    file = sorted((tmp_path / "classic").glob("*.pt"))[2]
    _truncate(file)
    (first, kept_first), (second, kept_second) = run_ranks(_load_spoilt, 2, str(tmp_path))
    assert first == second and file.name in first and kept_first and kept_second


def _save_where_one_cannot(rank, group, folder):
    model = make(MODERN, group)
    if rank == 1:
        real, torch.save = torch.save, lambda *args: (_ for _ in ()).throw(OSError("no space left on device"))
    try:
        with pytest.raises(ValueError, match="rank 1: no space left on device"):
            save(model, folder)
    finally:
        if rank == 1:
            torch.save = real


def test_every_rank_raises_if_one_cannot_write_and_no_index_appears(tmp_path):
    run_ranks(_save_where_one_cannot, 2, str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_other_dropout_attention_and_for_rotary_positions_another_t_are_the_same_model(tmp_path):
    save(make(MODERN), tmp_path)
    other = GPT(replace(MODERN, dropout=0.1, attention="unfused", T=99), dtype=torch.float64)
    load(other, tmp_path)
    assert torch.equal(other.norm.weight, make(MODERN).norm.weight)
