"""The training loop: steps that may be interrupted anywhere, and go on as if they had not been."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from tpcourse import wire
from tpcourse.data import average_in_buckets, mean_over_ranks
from tpcourse.train.parts import Parts, parts_of
from tpcourse.train.text import batch
from tpcourse.wire.inputs import place


@dataclass(frozen=True)
class Snapshot:
    """All that a step changes, as it was before step number `step`."""

    step: int
    states: list[dict[str, Any]]
    random: list[Tensor]
    forwards: int | None  # how many passes a `block.GPT` has counted: its dropout follows from that


class Trainer:
    """Trains a model on random pieces of a text, on one device or on all ranks of a grid of `tp` and `dp` groups.

    A step draws the batch that belongs to its number (over dp each rank takes its share), takes the gradients
    of the mean loss, adds up what ranks owe each other, clips, and lets optimizer and schedule step.

    An interrupt leaves some ranks in the middle of a step, others one step further. So before each step a
    rank keeps a snapshot of all that the step changes, on its own device, and the one before it; the next
    `advance` begins with the ranks agreeing on the last state that all of them have. What follows equals an
    uninterrupted run, bit for bit.

    Memory: two snapshots, each as large as weights and optimizer states: meant for small models.
    Traffic: for each `advance` one all-reduce of two numbers over tp and one over dp; for each step, beside
    what the model sends, over dp all-reduces of the gradients, of the number of targets and of the loss.
    Raises: ValueError for fewer sequences than dp has ranks, a text that is too short, a norm that is not above
    0, and a model that is split over ranks while `tp` is None.
    Trap: every rank of the groups must call `advance`, with the same number.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        tokens: Tensor,
        *,
        num_sequences: int,
        length: int,
        tp: dist.ProcessGroup | None = None,
        dp: dist.ProcessGroup | None = None,
        max_norm: float | None = 1.0,
        schedule: LRScheduler | None = None,
        parts: Parts | None = None,
    ) -> None:
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.num_sequences, self.length, self.max_norm = num_sequences, length, max_norm
        self.tp, self.dp, self.parts = tp, dp, parts or parts_of(model)
        self.tokens = tokens.to(next(model.parameters()).device)
        self.losses: list[float] = []
        self._kept: list[Snapshot] = []
        self._dirty = False  # in the middle of a step
        self._require()

    @property
    def step(self) -> int:
        """How many whole steps this rank has done; in the middle of one, how many it can go back to."""
        return self._kept[-1].step if self._dirty else len(self.losses)

    @property
    def tokens_per_step(self) -> int:
        """Targets in a batch, over all ranks."""
        return self.num_sequences * self.length

    def advance(self, num_steps: int) -> list[float]:
        """Take steps; returns their losses, each the mean over the whole batch before its step.

        After an interrupt, steps that not all ranks have finished are done again first of all.
        Raises: ValueError if the ranks are more than a step apart: they do not train together.
        """
        self._agree()
        first = self.step
        for _ in range(num_steps):
            self._keep()
            self._dirty = True
            loss = self._take_step()
            self.losses.append(loss)
            self._dirty = False
        return self.losses[first:]

    def _take_step(self) -> float:
        self.model.train()
        rank, p = (0, 1) if self.dp is None else place(self.dp)
        x, y = batch(self.tokens, self.num_sequences, self.length, step=self.step, rank=rank, p=p)
        self.optimizer.zero_grad()
        total = self.parts.loss_sum(self.model, x, y)
        loss = total / y.numel() if self.dp is None else mean_over_ranks(total, y.numel(), dp=self.dp)
        loss.backward()
        self.parts.finish(self.model)
        if self.dp is not None:
            average_in_buckets(self.model, dp=self.dp)
            loss = wire.all_reduce(loss.detach(), group=self.dp, op="avg")
        if self.max_norm is not None:
            self.parts.clip(self.model, self.max_norm)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return loss.item()  # last: on a GPU it waits for the whole step, so a step that counts has been done

    def _agree(self) -> None:
        """All ranks go to the earliest step that one of them is at. Ranks are at most one step apart: a step has
        collectives, and nobody gets through those of the next one alone.
        """
        least, most = self._range_of_steps()
        if most - least > 1:
            raise ValueError(
                f"ranks that train together are at steps {least} to {most}: no state is common to all. "
                "Make model, optimizer and trainer again, on every rank"
            )
        if self._dirty or self.step != least:
            self._go_back(least)

    def _range_of_steps(self) -> tuple[int, int]:
        """The least and the largest step that a rank of the grid is at."""
        ends = torch.tensor([self.step, -self.step], device=self.tokens.device)
        for group in (self.tp, self.dp):
            ends = ends if group is None else wire.all_reduce(ends, group=group, op="min")
        least, most = ends.tolist()
        return least, -most

    def _keep(self) -> None:
        """Take a snapshot, and drop all older ones but one (before, so that there are never three)."""
        self._kept = [snapshot for snapshot in self._kept if snapshot.step < self.step][-1:]
        states = deepcopy([part.state_dict() for part in self._stateful()])
        forwards = getattr(self.model, "forwards", None)
        self._kept = [*self._kept, Snapshot(self.step, states, _random_states(), forwards)]

    def _go_back(self, step: int) -> None:
        """Be as before this step. An interrupt in the middle leaves this rank dirty, at this step."""
        self._kept = [snapshot for snapshot in self._kept if snapshot.step <= step]
        self._dirty = True
        snapshot = self._kept[-1]
        # a copy: optimizers go on with the very tensors that they load
        for part, state in zip(self._stateful(), deepcopy(snapshot.states), strict=True):
            part.load_state_dict(state)
        _set_random_states(snapshot.random)
        if snapshot.forwards is not None:
            self.model.forwards = snapshot.forwards
        del self.losses[step:]
        self._dirty = False

    def _stateful(self) -> list[Any]:
        return [self.model, self.optimizer, *([] if self.schedule is None else [self.schedule])]

    def _require(self) -> None:
        p = 1 if self.dp is None else place(self.dp)[1]
        if self.num_sequences < p:
            raise ValueError(f"num_sequences = {self.num_sequences} for {p} dp ranks: each needs one, give {p} or more")
        if len(self.tokens) <= self.length:
            fix = f"give at least {self.length + 1}"
            raise ValueError(f"{len(self.tokens)} tokens are too few for sequences of {self.length}: {fix}")
        if self.max_norm is not None and not self.max_norm > 0:
            raise ValueError(f"max_norm = {self.max_norm}: give a norm above 0, or None for no clipping")
        theirs = getattr(self.model, "tp", None)
        if self.tp is None and theirs is not None:
            count = place(theirs)[1]
            raise ValueError(
                f"the model is split over {count} ranks, the trainer over none: pass the same group, tp=..."
            )


def warmup_cosine(optimizer: Optimizer, *, warmup: int, total: int, floor: float = 0.1) -> LambdaLR:
    """A schedule for `Trainer`: the learning rate rises linearly, then falls along half a cosine to `floor` of it.

    Step k, from 0: (k + 1) / warmup below warmup; then floor + (1 - floor) (1 + cos(pi x)) / 2, where x goes
    from 0 to 1 at step `total` and stays there.
    Raises: ValueError unless 0 <= warmup < total and 0 <= floor <= 1.
    """
    if not 0 <= warmup < total:
        raise ValueError(f"warmup = {warmup}, total = {total}: the warm-up is part of the total, and shorter")
    if not 0 <= floor <= 1:
        raise ValueError(f"floor = {floor}: the part of the rate that is left at the end, 0 to 1")

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        x = min(1.0, (step - warmup) / (total - warmup))
        return floor + (1 - floor) * (1 + math.cos(math.pi * x)) / 2

    return LambdaLR(optimizer, factor)


def _random_states() -> list[Tensor]:
    """Of the CPU's generator, and of the current GPU's if there is one in use."""
    on_gpu = [torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *on_gpu]


def _set_random_states(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1])
