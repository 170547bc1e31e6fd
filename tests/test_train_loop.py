"""The training loop on one device and on ranks; interrupted anywhere, it ends where it would have ended."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from torch import nn
from train_cases import Broken, Halfway, break_off, make, same, weights

from tpcourse.train import GPT as SmallGPT
from tpcourse.train import Trainer, batch, source_tokens, train_step, warmup_cosine

OPTIMIZER = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


def small(dropout: float = 0.0, max_norm: float | None = None) -> Trainer:
    """A trainer of a model that knows nothing of ranks."""
    torch.manual_seed(0)
    model = SmallGPT(T=8, D=16, H=2, L=1, dropout=dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Trainer(model, optimizer, source_tokens(3000), num_sequences=3, length=8, max_norm=max_norm)


def test_a_trainer_takes_the_steps_of_a_plain_loop():
    trainer, plain = small(), small()
    losses = [
        train_step(plain.model, plain.optimizer, *batch(source_tokens(3000), 3, 8, step=step)).item()
        for step in range(6)
    ]
    assert [*trainer.advance(2), *trainer.advance(4)] == trainer.losses == pytest.approx(losses, rel=1e-6)
    assert trainer.step == 6 and trainer.tokens_per_step == 24


def test_a_gpt_learns_the_text_of_the_standard_library():
    trainer = make()
    trainer.advance(60)
    assert trainer.losses[0] == pytest.approx(math.log(256), abs=0.3)
    assert sum(trainer.losses[-10:]) / 10 < 4


def test_gradients_are_clipped_to_the_largest_norm():
    trainer = small(max_norm=1e-3)
    trainer.advance(1)
    norm = torch.stack([weight.grad.norm() for weight in trainer.model.parameters()]).norm()
    assert norm.item() == pytest.approx(1e-3, rel=1e-2)


def _in_forward(trainer):
    return mock.patch.object(trainer.model.norm, "forward", side_effect=Broken)


@contextmanager
def _in_backward(trainer):
    """Some gradients are there."""
    handle = trainer.model.blocks[0].mlp.down.weight.register_hook(lambda _: break_off())
    yield
    handle.remove()


def _in_clip(trainer):
    return mock.patch("torch.nn.utils.clip_grads_with_norm_", side_effect=Broken)


def _in_schedule(trainer):
    return mock.patch("torch.optim.lr_scheduler.LambdaLR.step", side_effect=Broken)


def _in_snapshot(trainer):
    return mock.patch.object(trainer.optimizer, "state_dict", side_effect=Broken)


def _in_return(trainer):
    """Two of the step's three effects are there: weights and schedule have moved, the loss is not noted."""
    return mock.patch.object(trainer, "_take_step", side_effect=_then_break(trainer._take_step))


def _then_break(take_step):
    def step():
        take_step()
        raise Broken

    return step


PLACES = [_in_forward, _in_backward, _in_clip, _in_schedule, _in_snapshot, _in_return]


@pytest.mark.parametrize("place", PLACES)
def test_a_step_that_ended_in_the_middle_leaves_no_trace(place):
    straight, broken = make(dropout=0.2), make(dropout=0.2)
    straight.advance(6)
    broken.advance(2)
    for _ in range(2):  # in the same step twice: the snapshot is still what it was
        with place(broken), pytest.raises(Broken):
            broken.advance(1)
        assert broken.step == 2
    broken.advance(1)
    with place(broken), pytest.raises(Broken):
        broken.advance(2)
    broken.advance(3)
    assert same(broken, straight)


def test_an_optimizer_that_stopped_between_two_weights_is_taken_back():
    straight, broken = make(), make()
    straight.advance(5)
    Halfway(broken, 3, break_off)
    with pytest.raises(Broken):
        broken.advance(5)
    assert len(broken.losses) == broken.step == 3
    assert broken.advance(2) == straight.losses[3:] and same(broken, straight)


def test_a_trainer_that_does_not_go_back_ends_elsewhere():
    straight, broken = make(), make()
    straight.advance(5)
    Halfway(broken, 3, break_off)
    with pytest.raises(Broken):
        broken.advance(5)
    broken._dirty = False
    broken.advance(2)
    assert not same(broken, straight)


def test_masks_drawn_from_torch_s_own_generator_are_drawn_again():
    straight = small(dropout=0.3)
    straight.advance(4)
    broken = small(dropout=0.3)
    broken.advance(2)
    with mock.patch.object(broken.optimizer, "step", side_effect=Broken), pytest.raises(Broken):
        broken.advance(1)
    torch.randn(5)
    broken.advance(2)
    assert same(broken, straight)


def test_a_trainer_keeps_two_snapshots_and_never_three():
    trainer, most = make(), []
    whole = trainer.optimizer.state_dict
    with mock.patch.object(
        trainer.optimizer, "state_dict", side_effect=lambda: most.append(len(trainer._kept)) or whole()
    ):
        trainer.advance(4)
    assert most == [0, 1, 1, 1] and [snapshot.step for snapshot in trainer._kept] == [2, 3]


def test_weights_that_were_set_by_hand_are_what_an_interrupted_step_goes_back_to():
    trainer = make()
    trainer.advance(2)
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(0.25)
    before = weights(trainer)
    Halfway(trainer, 2, break_off)
    with pytest.raises(Broken):
        trainer.advance(1)
    trainer.advance(0)
    assert all(torch.equal(a, b) for a, b in zip(weights(trainer), before, strict=True))


def test_a_schedule_rises_in_a_line_and_falls_along_a_cosine():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule, rates = warmup_cosine(optimizer, warmup=4, total=12, floor=0.1), []
    for _ in range(14):
        rates.append(optimizer.param_groups[0]["lr"] / 2)
        optimizer.step()
        schedule.step()
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1, 1]) and rates[8] == pytest.approx(0.55)
    assert rates[12:] == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: small(max_norm=0.0), "max_norm = 0.0: give a norm above 0, or None"),
        (
            lambda: Trainer(nn.Linear(1, 1), OPTIMIZER, source_tokens(8), num_sequences=1, length=8),
            "8 tokens are too few for sequences of 8: give at least 9",
        ),
        (lambda: warmup_cosine(OPTIMIZER, warmup=5, total=5), "warmup = 5, total = 5"),
        (lambda: warmup_cosine(OPTIMIZER, warmup=0, total=5, floor=2), "floor = 2: the part of the rate"),
    ],
)
def test_bad_input_is_answered_with_the_numbers_and_the_fix(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
