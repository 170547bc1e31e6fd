"""Training from a notebook: interrupted ranks go on as if nothing had happened, and the bar leaves no trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from train_cases import CELL

from tpcourse import train
from tpcourse.ranks import RankError, RanksInterrupted, RanksStuck
from tpcourse.train import progress

TESTS = Path(__file__).parent
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def ranks(shared_ranks):
    """Ranks with a trainer that has done 8 steps, `straight`, and one that has done none."""
    shared_ranks.run_cell(CELL)
    with shared_ranks.patient(3):
        yield shared_ranks


def same(ranks):
    ranks.run_cell("equal = same(trainer, straight)")
    return ranks["equal"] == [True] * len(ranks)


def when_all_are(files):
    """The interrupt button, pressed as soon as each rank is where it should be."""

    def look(run):
        if all(file.exists() for file in files):
            raise KeyboardInterrupt

    return look


def test_ranks_interrupted_a_step_apart_and_within_a_step_train_on_as_if_they_had_not_been(ranks, tmp_path):
    """Rank 1 is in the middle of its optimizer's step 3, the others are in step 4, which they cannot end."""
    files = [tmp_path / str(rank) for rank in range(4)]
    ranks.run_cell(f"""file = f"{tmp_path}/{{rank}}"
Halfway(trainer, 3, Spin(file)) if rank == 1 else mark(trainer, 4, file);""")
    with pytest.raises(RanksInterrupted, match="groups were made again; every rank kept its variables"):
        ranks.run_cell("trainer.advance(8)", live=when_all_are(files))
    ranks.run_cell("at = trainer.step")
    assert ranks["at"] == [4, 3, 4, 4]
    ranks.run_cell("losses = trainer.advance(5)")
    assert same(ranks)
    ranks.run_cell("right = losses == straight.losses[3:]")
    assert ranks["right"] == [True] * 4


def test_ranks_of_which_one_raised_within_a_step_train_on_as_if_it_had_not(ranks):
    ranks.run_cell("if rank == 2:\n    Halfway(trainer, 2, break_off)")
    with pytest.raises((RankError, RanksStuck), match="Broken"):
        ranks.run_cell("trainer.advance(8)")
    ranks.run_cell("trainer.advance(0)\ntrainer.advance(8 - trainer.step);")
    assert same(ranks)


def test_a_second_press_interrupts_at_once_and_the_usual_handler_comes_back():
    usual = signal.getsignal(signal.SIGINT)
    with progress.noting_interrupt() as noted:
        os.kill(os.getpid(), signal.SIGINT)
        assert noted == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is usual


class Interrupted:
    """Ranks on which each run but the first is interrupted."""

    def __init__(self):
        self.runs, self.targets = 0, lambda _: [0]

    def run(self, *args, **kwargs):
        self.runs += 1
        if self.runs > 1:
            raise RanksInterrupted("at once")
        return [(0, 1)]


@pytest.mark.parametrize(
    ("count", "took_s", "next_count"), [(1, 0.01, 2), (4, 0.25, 8), (8, 0.5, 8), (8, 2.0, 2), (1, 30.0, 1), (3, 0.0, 6)]
)
def test_a_round_takes_about_half_a_second(count, took_s, next_count):
    assert progress.next_count(count, took_s) == next_count


@pytest.fixture
def shown(monkeypatch):
    """What the front end was sent."""
    sent = []

    class Handle:
        def update(self, data, raw):
            sent.append(data)

    monkeypatch.setattr("IPython.display.display", lambda data, **_: sent.append(data) or Handle())
    return sent


class Steady:
    """Ranks that take steps at once, and lose a tenth of their loss in each."""

    def __init__(self):
        self.losses = []

    def targets(self, targets):
        return [0, 1]

    def run(self, function, name, *numbers, targets):
        if function.__name__ == "_state":
            return [(len(self.losses), 100)] * 2
        if function.__name__ == "_losses":
            return [self.losses[: numbers[0]]] * 2
        self.losses += [0.9 ** len(self.losses)] * numbers[0]
        return [(len(self.losses), self.losses[-1])] * 2


def test_a_bar_shows_step_loss_and_speed_and_leaves_an_empty_output(shown, monkeypatch):
    monkeypatch.setattr(progress, "_is_live", lambda: True)
    texts, move = [], progress.Bar.move
    monkeypatch.setattr(
        progress.Bar, "move", lambda bar, *args: move(bar, *args) or texts.append((bar.bar.value, bar.text.value))
    )
    train.run(Steady(), steps=7)
    first, last = shown
    assert first["text/plain"] == progress.HINT and WIDGET in first
    assert last == {}, "nothing for nbval to compare"
    assert [done for done, _ in texts] == [1, 3, 7]
    assert texts[-1][1].startswith("step 7 of 7, loss 0.729, ") and texts[-1][1].endswith(" tokens/s")


def test_a_bar_leaves_when_the_training_is_interrupted(shown, monkeypatch):
    monkeypatch.setattr(progress, "_is_live", lambda: True)
    with pytest.raises(RanksInterrupted):
        train.run(Interrupted(), steps=3)
    assert shown[-1] == {} and len(shown) == 2


def test_a_speed_is_in_tokens_a_second(shown):
    bar = progress.Bar(2000, 100)
    bar.move(1500, 2.34567, 123.4)
    assert bar.text.value == "step 1,500 of 2,000, loss 2.346, 12,340 tokens/s"
    assert (bar.bar.value, bar.bar.max) == (1500, 2000)


@pytest.mark.parametrize(("live", "shell", "is_live"), [("0", 1, False), ("1", 1, True), ("1", None, False)])
def test_there_is_a_bar_only_where_somebody_watches(monkeypatch, live, shell, is_live):
    monkeypatch.setenv("TPCOURSE_LIVE", live)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    assert progress._is_live() is is_live


def test_the_notebook_s_side_of_training_starts_without_torch():
    code = "import sys\nfrom tpcourse.train import run\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=TESTS.parent).returncode == 0


def test_a_name_that_train_does_not_have_is_answered_with_those_it_has():
    with pytest.raises(AttributeError, match="no 'trainer'; it has GPT, NUM_BYTES, Trainer"):
        train.trainer  # noqa: B018
    assert "sample" in dir(train)
