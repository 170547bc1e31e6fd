"""Trainers of a tiny GPT, and steps that go wrong: what the tests of the training loop share with the ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from tpcourse.block import GPT, GPTConfig
from tpcourse.train import Trainer, source_tokens, warmup_cosine

CELL = f"""import sys
if {str(Path(__file__).parent)!r} not in sys.path:
    sys.path.insert(0, {str(Path(__file__).parent)!r})
from train_cases import Halfway, Pause, Spin, break_off, make, mark, same
straight, trainer = (make(tp=world, dropout=0.2, sequence_parallel=True) for _ in range(2))
straight.advance(8);"""
SIZES = {"V": 256, "T": 8, "D": 16, "H": 4, "L": 1}


def make(*, tp: Any = None, dp: Any = None, dropout: float = 0.0, **more: Any) -> Trainer:
    """A trainer, the same one for all ranks: 5 sequences a step, with a schedule, clipping always."""
    model = GPT(GPTConfig(**SIZES, dropout=dropout), tp=tp, dtype=torch.float64, **more)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = warmup_cosine(optimizer, warmup=3, total=20)
    sizes = {"num_sequences": 5, "length": 8, "max_norm": 0.5}
    return Trainer(model, optimizer, source_tokens(5000), tp=tp, dp=dp, schedule=schedule, **sizes)


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def same(trainer: Trainer, other: Trainer) -> bool:
    """Whether two trainers are at the same point, to the last bit."""
    pairs = zip(weights(trainer), weights(other), strict=True)
    return trainer.losses == other.losses and all(torch.equal(a, b) for a, b in pairs)


class Halfway:
    """Ends an optimizer's step in the middle, once, at the given step: one weight is changed, the others not."""

    def __init__(self, trainer: Trainer, step: int, end: Any) -> None:
        self.trainer, self.at, self.end = trainer, step, end
        self.hook = trainer.optimizer.register_step_pre_hook(self)

    def __call__(self, *_: Any) -> None:
        if self.trainer.step == self.at:
            self.hook.remove()
            with torch.no_grad():
                next(self.trainer.model.parameters()).add_(1.0)
            self.end()


class Pause:
    """Holds an optimizer's step up, once, at the given step: computes from when `at` is there until `go` is."""

    def __init__(self, trainer: Trainer, step: int, at: str, go: str) -> None:
        self.trainer, self.step, self.at, self.go = trainer, step, Path(at), Path(go)
        self.hook = trainer.optimizer.register_step_pre_hook(self)

    def __call__(self, *_: Any) -> None:
        if self.trainer.step == self.step:
            self.hook.remove()
            self.at.touch()
            end = time.monotonic() + 60
            while not self.go.exists() and time.monotonic() < end:
                pass


class Broken(Exception):
    """What the tests raise in the middle of a step."""


def break_off() -> None:
    raise Broken


class Spin:
    """Loops until somebody interrupts, from when the file is there."""

    def __init__(self, at: str) -> None:
        self.at = Path(at)

    def __call__(self) -> None:
        self.at.touch()
        while True:
            pass


def mark(trainer: Trainer, step: int, at: str) -> None:
    """Make the file as soon as the model begins this step."""
    trainer.model.register_forward_pre_hook(lambda *_: Path(at).touch() if trainer.step == step else None)
