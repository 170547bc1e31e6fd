"""What a check of lesson 05 runs in a rank: the answer, backward from what it returned, every gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from tpcourse.check.borrowed import borrowed_kernel
from tpcourse.check.compare import in_words
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson05.common import RETURNED
from tpcourse.check.rank_side import backward

OWN = tuple(f"tpcourse.{name}" for name in ("linear", "vocab", "sequence", "block", "train", "layer", "reference"))
PAIRS = ("tpcourse.conjugates",)
Watch = Callable[[Callable[[], Any]], Any]


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
