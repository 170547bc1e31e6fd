"""What a check of lesson 03 runs in a rank: find the answer, call it under the ledger, hand back facts."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from tpcourse.check.rank_side import namespace
from tpcourse.ledger import ledger

OWN = {"tpcourse.memory.holding": "held", "tpcourse.memory.saving": "saved", "tpcourse.layer": "run_layer"}


def run(name: str, probe: str, arguments: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The facts of this rank's trial; None where there is none. What the answer raises is a fact too."""
    rank = dist.get_rank()
    if rank >= len(arguments):
        return None
    device = namespace().get("device", torch.device("cpu"))
    answer = Answer(namespace()[name])
    with ledger() as log:
        try:
            facts = importlib.import_module(probe).probe(answer, device, **arguments[rank])
        except NotImplementedError:
            return {"stubbed": True}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}", "borrowed": answer.borrowed}
    return {**facts, "borrowed": answer.borrowed, "sent": tuple(sorted({event.op for event in log.events}))}


class Answer:
    """The learner's function, with a note if it calls the course's own version of itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.borrowed, self.inside = function, "", False

    def __call__(self, *args: Any) -> Any:
        with self._watched():
            return self.function(*args)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call" and OWN.get(module) == frame.f_code.co_name:
            self.borrowed = f"{'.'.join(module.split('.')[:2])}.{frame.f_code.co_name}"


def seeded(seed: int) -> None:
    """The same random numbers for every run of a trial, on the CPU and on a GPU."""
    torch.manual_seed(seed)
