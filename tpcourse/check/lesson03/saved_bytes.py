"""Exercise `saved_bytes(block, x)`: the bytes that autograd keeps, parameters left out, nothing left behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpcourse.check.weighing import Axis, Facts, Mistake, Weighing, gives, same_counts


def make(generator: np.random.Generator, case: int) -> dict[str, Any]:
    """Sizes of a block: a gated one, then a transformer layer."""
    tokens, width = (int(generator.integers(*bounds)) for bounds in ((10, 20), (12, 24)))
    return {"seed": int(generator.integers(2**31)), "tokens": tokens, "width": width, "gated": case == 0}


def left_behind(facts: Facts) -> str:
    """The fault of an answer after which tensors are still held."""
    if facts["held"] <= facts["budget"]:
        return ""
    return f"{facts['held']:,} bytes are still held after it has returned; nothing should be"


def _right(facts: Facts) -> bool:
    return "error" not in facts and not same_counts(facts)


EXERCISE = Weighing(
    name="saved_bytes",
    probe="lesson03.rank_saved_bytes",
    make=make,
    axes=(
        Axis("values", "bytes that autograd keeps, each storage once, parameters left out", same_counts),
        Axis("bytes held", "nothing is held after the count", left_behind),
    ),
    mistakes=(
        Mistake(
            gives("parameters"),
            "Parameters are in the count: backward reads the weights, and they are held anyway, with or without it.",
            "Note the storages of `block.parameters()` first, and leave them out.",
        ),
        Mistake(
            gives("every size"),
            "Tensors are added up, each with its own elements and as often as it is saved: memory is made of storages.",
            "Note each storage once, by its `data_ptr()`, with `tensor.untyped_storage().nbytes()`.",
        ),
        Mistake(
            gives("every time"),
            "A tensor is counted each time that it is saved: two operations that need the same one share it.",
            "Remember each storage by its `data_ptr()`, and count it the first time.",
        ),
        Mistake(
            gives("views"),
            "A view is counted with its own elements, and it keeps the whole storage behind it alive.",
            "Count `tensor.untyped_storage().nbytes()`, not `tensor.nbytes`.",
        ),
        Mistake(
            gives("input"),
            "x is left out: autograd keeps it as well, as long as the first operation needs it in backward.",
            "Leave out the parameters' storages only.",
        ),
        Mistake(
            gives("outputs"),
            "These are the outputs of the modules. Autograd keeps what operations need in backward: inputs too, masks, "
            "and nothing of what no backward reads.",
            "`torch.autograd.graph.saved_tensors_hooks(pack, unpack)` calls `pack` with each tensor that is saved.",
        ),
        Mistake(
            gives("four bytes"),
            "Every element counts 4 bytes here; a mask has 1 and a bfloat16 has 2.",
            "`untyped_storage().nbytes()` counts bytes, whatever the dtype.",
        ),
        Mistake(
            lambda facts: _right(facts) and facts["circle"],
            "The count is right, and the graph is never freed: a saved output that `pack` returns as it is holds the "
            "graph that holds it.",
            "Let `pack` return `tensor.detach()`: the same memory, without the graph.",
        ),
        Mistake(
            lambda facts: _right(facts) and bool(left_behind(facts)),
            "The count is right, and what was counted is still there: something outlives the call and holds it.",
            "Keep pointers and sizes, not tensors; and let go of the block's output.",
        ),
    ),
)
