"""Exercise `model_states(model, optimizer)`: bytes by kind, each storage once, without a copy of anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.weighing import Axis, Mistake, Weighing, gives, same_counts, within


def make(generator: np.random.Generator, case: int) -> dict[str, Any]:
    """Sizes of a model; mixed precision first, then float32."""
    bounds = {"words": (60, 90), "width": (20, 40), "hidden": (50, 70)}
    sizes = {name: int(generator.integers(*limits)) for name, limits in bounds.items()}
    return {"seed": int(generator.integers(2**31)), **sizes, "mixed": case == 0}


EXERCISE = Weighing(
    name="model_states",
    probe="lesson03.rank_model_states",
    make=make,
    axes=(
        Axis(
            "values",
            "bytes of parameters, gradients, master copies and moments, each storage once",
            same_counts,
        ),
        Axis("bytes held", "the count copies nothing", within),
    ),
    mistakes=(
        Mistake(
            gives("formula"),
            "These are 2 + 2 + 4 + 8 bytes for every parameter: the formula, not a count of what is there.",
            "Ask the tensors: `tensor.untyped_storage().nbytes()`, for gradients and moments that exist.",
        ),
        Mistake(
            gives("tensors"),
            "Tensors are added up, and memory is made of storages: the bucket behind the gradients is longer than the "
            "gradients in it.",
            "A tensor's storage, `tensor.untyped_storage()`, is what is held, whole, as long as anybody looks at it.",
        ),
        Mistake(
            gives("views"),
            "A storage is counted once for each tensor that looks at it: several gradients lie in one bucket.",
            "Remember each storage that you have counted, by its `data_ptr()`.",
        ),
        Mistake(
            gives("four bytes"),
            "Elements are counted as if all had the same size: a bfloat16 has 2 bytes, a float32 has 4.",
            "`untyped_storage().nbytes()` counts bytes, whatever the dtype.",
        ),
        Mistake(
            gives("steps"),
            "The optimizer's step counts are among the moments: each parameter has one, of 4 bytes.",
            'Leave out what lies under the key "step" of a parameter\'s state.',
        ),
        Mistake(
            gives("own master"),
            "A parameter that the optimizer steps itself is counted twice, once as a master copy: float32 weights have "
            "no other copy.",
            "A master copy is in `optimizer.param_groups` and not in `model.parameters()`.",
        ),
        Mistake(
            gives("first group"),
            "Master copies of the first group only: an optimizer may step its parameters in several groups.",
            'Go through all of them: `for group in optimizer.param_groups for p in group["params"]`.',
        ),
        Mistake(
            gives("every gradient"),
            "A gradient is counted for every parameter; frozen and unused ones have none.",
            "Count `p.grad` where it is not None.",
        ),
        Mistake(
            lambda facts: "error" not in facts and not same_counts(facts) and bool(within(facts)),
            "The counts are right, and the count itself copies what it counts: a full GPU has no room for that.",
            "Ask for a storage's size; `clone`, `cat`, `flatten` and `deepcopy` make new ones.",
        ),
    ),
)
