"""What a check of lesson 05 runs in a rank: the answer, backward from what it returned, every gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from tpcourse import ledger
from tpcourse.check.borrowed import borrowed_kernel
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson05.common import RETURNED
from tpcourse.check.rank_side import backward
from tpcourse.ledger.waits import following

OWN = tuple(f"tpcourse.{name}" for name in ("linear", "vocab", "sequence", "block", "train", "layer", "reference"))
PAIRS = ("tpcourse.conjugates",)
Watch = Callable[[Callable[[], Any]], Any]


def noting_waits(call: Callable[..., Any]) -> Callable[..., Any]:
    """A probe's call that notes in `unwaited` the operations that the answer began and never waited for.

    Trap: it holds the works, and they hold what they send and receive.
    """

    @functools.wraps(call)
    def noted(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome, *more: Any) -> Any:
        waited = set[int]()
        with following(lambda work, events: waited.update(map(id, events)), any_thread=True) as works:
            with _other_waits(lambda: waited.update(id(event) for _, events in works for event in events)):
                result = call(answer, given, groups, outcome, *more)
            begun = [event for _, events in works for event in events if event.is_async]
            outcome.facts["unwaited"] = [event.op for event in begun if id(event) not in waited]
        return result

    return noted


@contextmanager
def _other_waits(note: Callable[[], None]) -> Iterator[None]:
    """In the block, `note()` is called before a wait that no work shows: for a tensor of a functional collective, or
    for a work's future.
    """
    pending, future_of = ledger._recorder().pending, dist.Work.get_future
    tensor_of = pending.of_tensor

    def of_tensor(tensor: Any) -> Any:
        note()
        return tensor_of(tensor)

    def get_future(work: Any) -> Any:
        note()
        return future_of(work)

    pending.of_tensor, dist.Work.get_future = of_tensor, get_future
    try:
        yield
    finally:
        if vars(pending).get("of_tensor") is of_tensor:  # else a later block replaced both
            del pending.of_tensor
            dist.Work.get_future = future_of


@noting_waits
def call(
    function: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome, watch: Watch = lambda forward: forward()
) -> Any:
    """y and the gradients of all arguments that ask for one; y alone where there is no `dy`.

    `watch(forward)` makes the forward call where more is to be seen of it.
    """
    outcome.facts["own"] = borrowed_kernel(function, OWN)
    outcome.facts["pair"] = borrowed_kernel(function, PAIRS)
    arguments = [value for name, value in given.items() if name != "dy"]
    y = alone(watch(lambda: function(*arguments, *groups)))
    outcome.facts["forward"] = len(outcome.events)  # calls so far
    if "dy" not in given or y is None:
        return settled(y)
    backward([y], [given["dy"]])
    leaves = [value for value in arguments if isinstance(value, torch.Tensor) and value.requires_grad]
    return [settled(y), *(settled(leaf.grad) for leaf in leaves)]


def alone(result: Any) -> torch.Tensor | None:
    """What an answer returned, if that is one tensor, or nothing.

    Raises: TypeError that says what came in its place.
    """
    if result is None or isinstance(result, torch.Tensor):
        return result
    raise TypeError(f"{RETURNED} {in_words(result)}: return one tensor alone")


def settled(result: Any) -> Any:
    """What a functional collective promised, once it is there; any other value as it is."""
    return result.trigger_wait() if isinstance(result, AsyncCollectiveTensor) else result


def in_words(value: Any) -> str:
    """ "a tuple of 2", "a dict of 1", "a NumPy array", "a float"."""
    kind = "NumPy array" if isinstance(value, np.ndarray) else type(value).__name__
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind}" + (f" of {len(value)}" if isinstance(value, list | tuple | dict | set) else "")
