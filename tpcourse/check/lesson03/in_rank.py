"""What a check of lesson 03 runs in a rank: find the answer, call it under the ledger, hand back facts."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist

from tpcourse.check.borrowed import module_of, reached
from tpcourse.check.compare import in_words
from tpcourse.check.rank_side import namespace
from tpcourse.ledger import ledger

OWN = {"tpcourse.memory.holding": "held", "tpcourse.memory.saving": "saved", "tpcourse.layer": "run_layer"}
PACKAGES = ("tpcourse.memory", "tpcourse.layer", "tpcourse.check")


def run(name: str, probe: str, arguments: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The facts of this rank's trial; None where there is none. What the answer raises is a fact too."""
    rank = dist.get_rank()
    if rank >= len(arguments):
        return None
    device = namespace().get("device", torch.device("cpu"))
    answer = namespace()[name]
    own = borrowed(answer)
    with ledger() as log:
        try:
            facts = importlib.import_module(probe).probe(answer, device, **arguments[rank])
        except NotImplementedError:
            return {"stubbed": True}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}", "borrowed": own}
    return {**facts, "borrowed": own, "sent": tuple(sorted({event.op for event in log.events}))}


def borrowed(answer: Any) -> str:
    """The course's own version that an answer mentions, directly or by a helper of the notebook; "" if none.

    Read off the code: a profiler would see the call, and stops for ever in Python 3.11 once a thread was left behind.
    """
    for value in reached(answer, PACKAGES):
        module, name = module_of(value), getattr(value, "__name__", "")
        if OWN.get(module) == name:
            return f"{'.'.join(module.split('.')[:2])}.{name}"
        if f"{module}.".startswith("tpcourse.check."):
            return f"{module}.{name}"
    return ""


def kind_of(result: Any) -> str | None:
    """What an answer returned, in words: "a tensor", "a list of 2"; None for nothing."""
    if result is None or isinstance(result, torch.Tensor):
        return None if result is None else "a tensor"
    return in_words(result)


def seeded(seed: int) -> None:
    """The same random numbers for every run of a trial, on the CPU and on a GPU."""
    torch.manual_seed(seed)
