"""Runs in a rank: some training steps, with the most bytes that they hold at one time."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tpcourse.check.lesson03.in_rank import kind_of, seeded
from tpcourse.memory import peak

Batches = list[tuple[Tensor, Tensor]]
TOLERANCE = 1e-9
LAYERS = 4


def probe(
    answer: Any, device: torch.device, seed: int, rows: int, width: int, hidden: int, steps: int
) -> dict[str, Any]:
    """The answer beside a sparing version and beside the one that the exercise begins with."""
    seeded(seed)
    widths = [width, *[hidden] * LAYERS]
    layers = [(nn.Linear(a, b), nn.GELU()) for a, b in zip(widths, widths[1:], strict=False)]
    net = nn.Sequential(*(part for pair in layers for part in pair), nn.Linear(hidden, width))
    net = net.to(device, torch.float64)
    shape = (2, rows, width)
    batches = [tuple(torch.randn(shape, dtype=torch.float64, device=device)) for _ in range(steps)]
    sparing, right = run(sparing_steps, net, batches)
    untouched, _ = run(given_steps, net, batches)
    wrong = {train.__name__: run(train, net, batches)[1] for train in (first_loss_only, never_cleared)}
    with _counted() as collections:
        held, got = run(answer, net, batches)
    return {
        "result": got["kind"],
        "differs": differences(got, right),
        "like": next((name for name, other in wrong.items() if not differences(got, other)), ""),
        "held": held,
        "budget": sparing * 5 // 4,
        "untouched": untouched,
        "collections": collections[0],
        "forwards": got["forwards"],
        "steps": steps,
    }


def run(train: Any, net: nn.Module, batches: Batches) -> tuple[int, dict[str, Any]]:
    """The peak of a training function on a copy of the model, and what it gave."""
    model = copy.deepcopy(net)
    forwards = [0]
    handle = model.register_forward_pre_hook(lambda *_: forwards.__setitem__(0, forwards[0] + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with peak() as seen:
        losses = train(model, optimizer, batches)
    handle.remove()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    found = losses.detach() if isinstance(losses, Tensor) else None
    return seen.bytes, {"losses": found, "kind": kind_of(losses), "forwards": forwards[0], **weights}


def differences(got: dict[str, Any], right: dict[str, Any]) -> dict[str, str]:
    """What is wrong with the losses, and with each weight after the last step."""
    found = {}
    for name, expected in right.items():
        if name in ("forwards", "kind"):
            continue
        tensor = got[name]
        if tensor is None:
            found[name] = f"{got['kind'] or 'nothing'} was returned, not a tensor"
        elif tensor.shape != expected.shape or tensor.dtype != expected.dtype:
            found[name] = (
                f"{tensor.dtype} of shape {list(tensor.shape)}, not float64 of {list(expected.shape)}"
            )
        elif not (error := ((tensor - expected).abs().max() / expected.abs().max()).item()) <= TOLERANCE:
            found[name] = f"largest relative error {error:.1g}"
    return found


def given_steps(model: nn.Module, optimizer: Any, batches: Batches) -> Tensor:
    """The program of the exercise, as it is given."""
    losses = []
    for x, target in batches:
        y = model(x)
        loss = (y - target).square().mean()
        size = 0.01 * y.square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        size.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)
    return torch.stack(losses)


def sparing_steps(model: nn.Module, optimizer: Any, batches: Batches) -> Tensor:
    """The same steps; a graph is freed by its last backward, and no name holds it."""
    losses = []
    for x, target in batches:
        y = model(x)
        loss = (y - target).square().mean()
        size = 0.01 * y.square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        size.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def first_loss_only(model: nn.Module, optimizer: Any, batches: Batches) -> Tensor:
    """The steps of the first loss alone."""
    losses = []
    for x, target in batches:
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def never_cleared(model: nn.Module, optimizer: Any, batches: Batches) -> Tensor:
    """The steps with the gradients of all steps before."""
    losses = []
    for x, target in batches:
        y = model(x)
        loss = (y - target).square().mean()
        (loss + 0.01 * y.square().mean()).backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@contextmanager
def _counted() -> Iterator[list[int]]:
    """How often the answer asks for garbage to be collected, or a GPU's cache to be emptied."""
    count, before = [0], (gc.collect, torch.cuda.empty_cache)

    def collect(*_: Any, **__: Any) -> int:
        count[0] += 1
        return 0

    gc.collect, torch.cuda.empty_cache = collect, collect
    try:
        yield count
    finally:
        gc.collect, torch.cuda.empty_cache = before
