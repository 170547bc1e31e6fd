"""Which weights share a flat array, and in which order the arrays leave. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

BYTES_PER_MB = 1_000_000
Named = dict[str, nn.Parameter]


def named_groups(module: nn.Module, groups: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Parameter groups as torch's optimizers take them, with {name: weight} for `params` and no frozen weight.

    None puts all weights into one group. A tied weight has the first of its names.
    Raises: ValueError if there is nothing to train, a weight is in no group or in two, or not in the module.
    """
    names = {id(weight): name for name, weight in module.named_parameters()}
    trained = {id(weight) for weight in module.parameters() if weight.requires_grad}
    if not trained:
        raise ValueError(f"0 of {len(names)} weights require a gradient: there is nothing to step")
    given = [{"params": list(module.parameters())}] if groups is None else [dict(group) for group in groups]
    seen: set[int] = set()
    for number, group in enumerate(given):
        weights = list(group["params"])
        if not all(id(weight) in names for weight in weights):
            raise ValueError(f"group {number} has a weight that is not in the module: take them from its parameters()")
        if twice := [names[id(weight)] for weight in weights if id(weight) in seen]:
            raise ValueError(f"{twice[0]!r} is in two groups: each weight is stepped once")
        seen |= {id(weight) for weight in weights}
        group["params"] = {names[id(weight)]: weight for weight in weights if id(weight) in trained}
    if missing := [name for key, name in names.items() if key in trained - seen]:
        raise ValueError(f"{len(missing)} weights are in no group, such as {missing[0]!r}: add them, or freeze them")
    return [group for group in given if group["params"]]


def buckets(weights: Named, bucket_mb: float) -> list[Named]:
    """Weights of one dtype, the last first, in lots that end as soon as they hold `bucket_mb` or more."""
    lots: list[Named] = []
    for alike in together(weights, [weight.dtype for weight in weights.values()]):
        size = float("inf")
        for name in reversed(alike):
            if size >= bucket_mb * BYTES_PER_MB:
                lots.append({})
                size = 0
            lots[-1][name] = alike[name]
            size += alike[name].nbytes
    return lots


def together(weights: Named, keys: Sequence[Hashable]) -> list[Named]:
    """Weights whose keys are equal, in one lot each."""
    lots: dict[Hashable, Named] = {}
    for (name, weight), key in zip(weights.items(), keys, strict=True):
        lots.setdefault(key, {})[name] = weight
    return list(lots.values())


def owners(layers: Sequence[nn.Module]) -> dict[int, int]:
    """Weight (its id) -> number of the layer that gathers it. Layer 0 is the module that contains all.

    A weight of one layer belongs to it; one of none, or of several (tied), to layer 0, which is there while all run.
    Raises: ValueError if a layer is within another, or not in the module.
    """
    home = {id(weight): 0 for weight in layers[0].parameters()}
    inside = {id(module) for module in layers[0].modules()}
    within: dict[int, int] = {}  # modules and weights
    for number, layer in enumerate(layers[1:], start=1):
        if id(layer) not in inside:
            raise ValueError(f"layer {number - 1}, a {type(layer).__name__}, is no part of the module")
        for module in layer.modules():
            if within.setdefault(id(module), number) != number:
                raise ValueError(f"layers {within[id(module)] - 1} and {number - 1} share a module: give layers apart")
        for weight in layer.parameters():
            home[id(weight)] = number if home[id(weight)] in (0, number) and id(weight) not in within else 0
            within[id(weight)] = number
    outside = (module for module in layers[0].modules() if id(module) not in within)
    home.update((id(weight), 0) for module in outside for weight in module.parameters(recurse=False))
    return home


def default_layers(module: nn.Module) -> list[nn.Module]:
    """The members of the outermost lists and sequences of modules that have weights, in the module's order."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        return [member for member in module if next(member.parameters(), None) is not None]
    return [layer for child in module.children() for layer in default_layers(child)]


def require_bucket(bucket_mb: float) -> float:
    """Raises: ValueError unless a bucket holds something."""
    if not bucket_mb > 0:
        raise ValueError(f"bucket_mb = {bucket_mb} holds no gradient: give megabytes above 0, such as bucket_mb=25")
    return bucket_mb
