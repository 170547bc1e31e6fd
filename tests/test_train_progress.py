"""`train.run` on real ranks: stopped, interrupted or broken, a training ends where it would have ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from unittest import mock

import pytest
from train_cases import CELL

from tpcourse import train
from tpcourse.ranks import RankError, RanksInterrupted, RanksStuck
from tpcourse.train import progress

WIDGET = "application/vnd.jupyter.widget-view+json"
END_S = 60.0


@pytest.fixture(scope="module")
def prepared(ranks_on):
    """Ranks with `straight`, a trainer that has done 8 steps in one go."""
    ranks = ranks_on("gloo")
    ranks.run_cell(CELL)
    return ranks


@pytest.fixture
def ranks(prepared):
    """Those ranks with `trainer`, which has done none."""
    prepared.run_cell("trainer = make(tp=world, dropout=0.2, sequence_parallel=True)")
    return prepared


@pytest.fixture
def shown(monkeypatch):
    """What a front end is sent: there is somebody who watches."""
    sent = []
    handle = mock.Mock(update=lambda data, raw: sent.append(data))
    monkeypatch.setattr("IPython.display.display", lambda data, **_: sent.append(data) or handle)
    monkeypatch.setattr("IPython.get_ipython", lambda: mock.Mock())
    monkeypatch.setenv("TPCOURSE_LIVE", "1")
    return sent


@pytest.fixture
def noted(monkeypatch):
    """The list in which `train.run` notes an interrupt; empty until then."""
    lists, usual = [], progress.noting_interrupt

    @contextmanager
    def noting():
        with usual() as presses:
            lists.append(presses)
            yield presses

    monkeypatch.setattr(progress, "noting_interrupt", noting)
    return lists


def wait_until(condition):
    end = time.monotonic() + END_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def press(times, at, go, noted):
    """The interrupt button, first when rank 1 is in the middle of a step; if only once, the rank then goes on."""
    wait_until(at.exists)
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: noted[-1])
    if times == 1:
        go.touch()


def stopped(ranks, times, step, folder, noted):
    """Train to step 8 with an interrupt in this step of rank 1; returns what `train.run` raised."""
    at, go = folder / f"at {step}", folder / f"go {step}"
    ranks.run_cell(f"Pause(trainer, {step}, {str(at)!r}, {str(go)!r});", targets=1)
    threading.Timer(0, press, (times, at, go, noted)).start()
    with pytest.raises((progress.TrainingStopped, RanksInterrupted)) as caught:
        train.run(ranks, steps=8)
    return caught.value


def ends_like_straight(ranks):
    losses = train.run(ranks, steps=8)
    ranks.run_cell("equal = same(trainer, straight)")
    return ranks["equal"] == [True] * 4 and losses == train.run(ranks, "straight", steps=8)


def test_an_interrupt_stops_a_training_between_two_steps_and_the_same_call_goes_on(ranks, noted, tmp_path, capsys):
    error = stopped(ranks, 1, 3, tmp_path, noted)
    ranks.run_cell("at = trainer.step")
    (at,) = set(ranks["at"])
    assert 4 <= at < 8
    assert str(error) == f"You stopped the training after step {at} of 8. The same cell again goes on from there."
    assert ends_like_straight(ranks) and capsys.readouterr() == ("", "")


def test_a_second_interrupt_stops_it_within_a_step_and_the_same_call_goes_on_each_time(ranks, noted, tmp_path):
    for step in (3, 5):
        error = stopped(ranks, 2, step, tmp_path, noted)
        assert isinstance(error, RanksInterrupted)
        assert "The groups were made again; every rank kept its variables." in str(error)
        ranks.run_cell("at = trainer.step")
        assert ranks["at"][1] == step
    assert ends_like_straight(ranks)


def test_a_rank_that_raises_within_a_step_costs_nothing_but_the_same_call_again(ranks):
    ranks.run_cell("Halfway(trainer, 1, break_off);", targets=2)
    with pytest.raises((RankError, RanksStuck), match="Broken"):
        train.run(ranks, steps=8)
    ranks.run_cell("at = trainer.step")
    assert ranks["at"][2] == 1
    assert ends_like_straight(ranks)


def test_the_bar_follows_the_steps_of_the_ranks_and_is_gone_in_the_end(ranks, shown, monkeypatch, capsys):
    bars, move = [], progress.Bar.move
    monkeypatch.setattr(
        progress.Bar, "move", lambda bar, *args: move(bar, *args) or bars.append((bar.bar.value, bar.text.value))
    )
    losses = train.run(ranks, steps=5)
    assert WIDGET in shown[0] and shown[1:] == [{}] and capsys.readouterr() == ("", "")
    done = [value for value, _ in bars]
    assert done[0] == 1 and done[-1] == 5 and done == sorted(set(done)) and len(done) > 1
    assert all(text.startswith(f"step {at} of 5, loss {losses[at - 1]:.3f}, ") for at, text in bars)


def test_without_a_spectator_there_is_no_widget_and_no_output(ranks, shown, monkeypatch, capsys):
    monkeypatch.setenv("TPCOURSE_LIVE", "0")
    with mock.patch.object(progress, "Bar") as bar:
        assert len(train.run(ranks, steps=2)) == 2
    assert not bar.called and shown == [] and capsys.readouterr() == ("", "")


def test_a_training_that_is_done_is_looked_at_and_not_touched(ranks, shown):
    with mock.patch.object(ranks, "run", wraps=ranks.run) as run:
        losses = train.run(ranks, "straight", steps=8)
        assert train.run(ranks, "straight", steps=5) == losses[:5]
    assert [call.args[0].__name__ for call in run.call_args_list] == ["_state", "_losses"] * 2
    assert len(losses) == 8 and shown == []


@pytest.mark.parametrize("steps", [0, -1, 2.0, True, None])
def test_a_number_of_steps_that_is_none_is_quoted(steps):
    with pytest.raises(ValueError, match=f"steps = {steps}: how many steps the trainer has done in the end"):
        train.run(None, steps=steps)


def test_ranks_without_a_trainer_are_named(ranks):
    ranks.run_cell("trainer = straight if rank == 2 else straight.model if rank else None")
    with pytest.raises(ValueError, match="'trainer' is no trainer on ranks 0-1, 3: run the cell that makes it, on"):
        train.run(ranks, steps=3)
    with pytest.raises(ValueError, match="'other' is no trainer on ranks 0-3: .*, as other = Trainer"):
        train.run(ranks, "other", steps=3)
