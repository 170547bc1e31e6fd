"""Exercise `train_steps(model, optimizer, batches)`: the bug hunt, a graph that is kept alive too long."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.weighing import Axis, Facts, Mistake, Weighing, within


def make(generator: np.random.Generator, case: int) -> dict[str, Any]:
    """Many rows for few weights, so that activations weigh."""
    sizes = {"rows": (200, 300), "width": (5, 9), "hidden": (14, 20), "steps": (3, 6)}
    drawn = {name: int(generator.integers(*bounds)) for name, bounds in sizes.items()}
    return {"seed": int(generator.integers(2**31)), **drawn}


def differs(facts: Facts) -> str:
    """The losses, or the first weight, that are not the given program's."""
    found = next(iter(facts["differs"].items()), None)
    return f"{found[0]}: {found[1]}" if found else ""


def too_many(facts: Facts) -> str:
    """The fault of forwards that run again."""
    if facts["forwards"] <= facts["steps"]:
        return ""
    return f"the model runs {facts['forwards']} times for {facts['steps']} batches"


def _held(facts: Facts) -> bool:
    return "error" not in facts and not facts["differs"] and bool(within(facts))


EXERCISE = Weighing(
    name="train_steps",
    probe="lesson03.rank_train_steps",
    make=make,
    axes=(
        Axis("values", "losses and weights are those of the given program", differs),
        Axis("bytes held", "at no time more than one graph", within),
        Axis("operations", "the model runs once for each batch", too_many),
    ),
    mistakes=(
        Mistake(
            lambda facts: "second time" in facts.get("error", ""),
            "The first backward freed what the second one reads: one of the two retain_graph is needed.",
            "Free the graph in the last backward through it, not in the first; or add the two losses and go back once.",
        ),
        Mistake(
            lambda facts: "does not require grad" in facts.get("error", ""),
            "The loss was cut from its graph before its backward: nothing is left to go back through.",
            "Call `backward` on the loss, and detach what you keep of it afterwards.",
        ),
        Mistake(
            lambda facts: facts.get("result") not in (None, "a tensor"),
            "The losses were not returned as one tensor.",
            "`torch.stack(losses)` makes a tensor of a list of tensors, `torch.tensor(losses, dtype=torch.float64)` of "
            "numbers.",
        ),
        Mistake(
            lambda facts: facts.get("like") == "first_loss_only",
            "The second loss is gone: weights follow the gradient of the first one alone.",
            "Both losses have a backward, or their sum has: `(loss + size).backward()`.",
        ),
        Mistake(
            lambda facts: facts.get("like") == "never_cleared",
            "Gradients of earlier steps are still there: `optimizer.zero_grad()` is missing.",
            "Call it once for each batch, before the first backward.",
        ),
        Mistake(
            lambda facts: _held(facts) and facts["collections"] > 0,
            "Collecting garbage frees nothing here: the graphs are no garbage, a name still holds each of them.",
            "Find the name. What does the list hold, and what does that hold?",
        ),
        Mistake(
            lambda facts: _held(facts) and facts["held"] > facts["untouched"] * 0.9,
            "The graphs of all steps are alive at the end: each loss in the list holds the graph that it came from.",
            "Keep the number without its graph: `loss.detach()`. Is that enough?",
        ),
        Mistake(
            _held,
            "One graph too many: the last step's is alive until its names are bound again, and that is after the next "
            "forward.",
            "The last backward through a graph should free it: leave out its retain_graph, or `del` the names.",
        ),
        Mistake(
            lambda facts: "error" not in facts and facts["forwards"] > facts["steps"],
            "The model runs twice for each batch: that pays with time for what a backward frees for nothing.",
            "One forward is enough for both losses.",
        ),
    ),
)
