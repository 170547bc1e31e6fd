"""Runs in a rank: the answer between a forward whose kept bytes are counted and a backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from tpcourse.check import rank_side
from tpcourse.check.evidence import Outcome
from tpcourse.check.lesson06.in_rank import note_borrowed, with_gradients
from tpcourse.check.lesson07.rank_names import named_storages
from tpcourse.check.lesson07.rank_watch import Held
from tpcourse.memory import saved
from tpcourse.memory.storages import key_of, tensors_in


def call(answer: Any, given: dict[str, Any], groups: list[Any], outcome: Outcome) -> list[Any] | None:
    """y, dx, dweight and dbias."""
    note_borrowed(outcome, answer)
    x, weight, bias, dy = given.values()
    leaves = [x.requires_grad_(), nn.Parameter(weight), nn.Parameter(bias)]
    with Held(outcome) as held:
        y, num_saved = counted(lambda: answer(*leaves, *groups))
    num_hidden, num_named = 0, 0
    if isinstance(y, Tensor):
        num_hidden, num_named = hidden_bytes(y, leaves[1:]), named_bytes(held, y)
    held.finish()
    kept = max(num_saved, num_hidden, num_named)
    outcome.facts.update(saved=num_saved, hidden=num_hidden, named=num_named, kept=kept)
    return with_gradients(y, dy, leaves)


def counted(forward: Any) -> tuple[Any, int]:
    """What `forward` returns, and the bytes that autograd saved for its backward."""
    outputs: list[Any] = []

    def run() -> Any:
        outputs.append(forward())
        return outputs[0]

    try:
        num_saved = saved(run).bytes
    except ValueError:
        if not outputs:
            raise
        num_saved = 0  # no output needs a backward
    return outputs[0], num_saved


def named_bytes(held: Held, y: Tensor) -> int:
    """Bytes that forward made and that a name still keeps, y's apart: a global, or an attribute of a cell's class.

    Other holders do not count, and nobody is waited for: the thread that sends lets go a little later.
    """
    classes = [thing for thing in rank_side.namespace().values() if isinstance(thing, type)]
    named = named_storages(dict(vars(thing)) for thing in classes if thing.__module__ == "__main__")
    own = key_of(y.untyped_storage())
    return sum(size for key, size in held.alive().items() if key in named and key != own)


def hidden_bytes(y: Tensor, weights: list[Tensor]) -> int:
    """Bytes of the tensors that are attributes of a ctx, anywhere in the graph of y: nobody counts them as saved."""
    known = {key_of(tensor.untyped_storage()) for tensor in (*weights, y)}
    storages = {key_of(s): s for s in (tensor.untyped_storage() for tensor in on_nodes(y))}
    return sum(storage.nbytes() for key, storage in storages.items() if key not in known)


def on_nodes(y: Tensor) -> Iterator[Tensor]:
    """The tensors in the attributes of all nodes of a graph; the ctx of a Function is its node."""
    nodes, seen = [y.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield from tensors_in(list(getattr(node, "__dict__", {}).values()))
        nodes += [before for before, _ in node.next_functions]
