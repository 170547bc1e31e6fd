"""Exercise `selective_recompute(layer, x)`: keeps no scores, gradients equal, only the core run again."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.weighing import Axis, Facts, Mistake, Weighing, calls, within


def make(generator: np.random.Generator, case: int) -> dict[str, Any]:
    """Sizes of a layer: many tokens for its width, so that the scores weigh."""
    sizes = {"batch": (2, 4), "tokens": (24, 40), "heads": (3, 6), "head_width": (5, 9)}
    drawn = {name: int(generator.integers(*bounds)) for name, bounds in sizes.items()}
    return {"seed": int(generator.integers(2**31)), **drawn}


def differs(facts: Facts) -> str:
    """The first tensor that is not the plain layer's."""
    found = next(iter(facts["differs"].items()), None)
    return calls(facts) or (f"{found[0]}: {found[1]}" if found else "")


def too_much(facts: Facts) -> str:
    """The fault of products that run again without need."""
    if facts["extra"] <= facts["core"]:
        return ""
    return (
        f"{facts['extra']:,} operations are run again in backward, the budget is the core's {facts['core']:,}"
    )


def _gradients_only(facts: Facts) -> bool:
    """Whether the output is right and a gradient is not."""
    return "error" not in facts and bool(facts["differs"]) and "y" not in facts["differs"]


def _right(facts: Facts) -> bool:
    return "error" not in facts and not facts["differs"]


EXERCISE = Weighing(
    name="selective_recompute",
    probe="lesson03.rank_selective_recompute",
    make=make,
    axes=(
        Axis(
            "values", "y, dx and the gradient of every weight equal the plain layer's, dropout too", differs
        ),
        Axis("bytes held", "no score is kept: 34 sbh in bfloat16, 130 sbh here, in float64", within),
        Axis("operations", "only the core's products are run again", too_much),
    ),
    mistakes=(
        Mistake(
            lambda facts: _gradients_only(facts) and facts["extra"] > 0,
            "The output is right and the gradients are not: backward drew another dropout mask than forward did.",
            "Recompute with the random numbers of the forward: `checkpoint` does unless preserve_rng_state is off.",
        ),
        Mistake(
            lambda facts: _gradients_only(facts) and "dqkv.weight" in facts["differs"],
            "The scores are not kept because they are not in the graph: no gradient flows back through the core.",
            "`torch.no_grad()` and `detach()` cut the graph; `checkpoint` keeps it and computes the core again.",
        ),
        Mistake(
            lambda facts: _right(facts) and facts["held"] == facts["kept"]["none"],
            "Nothing is recomputed: the scores, their softmax and their dropout are all kept.",
            "`torch.utils.checkpoint.checkpoint(layer.core, q, k, v, use_reentrant=False)` keeps q, k and v.",
        ),
        Mistake(
            lambda facts: _right(facts) and facts["held"] == facts["kept"]["mlp"],
            "The MLP is recomputed, and the scores are kept: what is large here is tokens times tokens, in the core.",
            "Put `layer.core` into the checkpoint, and leave `layer.mlp` out of it.",
        ),
        Mistake(
            lambda facts: _right(facts) and facts["held"] == facts["kept"]["core and mlp"],
            "Core and MLP are recomputed: the MLP keeps no scores, and its two products are dear to run again.",
            "Only `layer.core` goes into the checkpoint; call `layer.mlp` as it is.",
        ),
        Mistake(
            lambda facts: _right(facts) and facts["extra"] > facts["forward"] // 2,
            "The whole layer is recomputed: that keeps least, and costs a third more operations.",
            "Only `layer.core` goes into the checkpoint; it has no weights, and its products are the cheapest.",
        ),
        Mistake(
            lambda facts: _right(facts) and facts["extra"] > facts["core"],
            "A product with weights is recomputed too: the checkpoint holds more than the core.",
            "Compute `layer.project(x)` before the checkpoint, and `layer.join` after it.",
        ),
    ),
)
