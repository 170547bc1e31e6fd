"""Runs in a rank: a model and its optimizer after a step, and what several ways of counting make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from tpcourse.adam import MixedAdam
from tpcourse.check.lesson03.in_rank import seeded
from tpcourse.memory import peak

Size = Callable[[Iterable[Tensor], set[int]], int]
KINDS = ("parameter", "gradient", "master", "moment")


def probe(answer: Any, device: torch.device, **sizes: Any) -> dict[str, Any]:
    """The answer's counts beside the right ones, and what it held while it counted."""
    model, optimizer = build(device, **sizes)
    with peak() as seen:
        result = answer(model, optimizer)
    found = plain(result)
    right = account(model, optimizer, once)
    wrong = {
        "tensors": [account(model, optimizer, each_tensor)],
        "views": [account(model, optimizer, each_view)],
        "four bytes": [account(model, optimizer, four_bytes), account(model, optimizer, elements)],
        "steps": [account(model, optimizer, once, steps=True)],
        "first group": [account(model, optimizer, once, groups=1)],
        "own master": [account(model, optimizer, once, own_master=True)],
        "every gradient": [
            {**right, "gradient": once(some, set())} for some in (model.parameters(), _trained(model))
        ],
        "formula": formulas(model),
    }
    largest = max(p.numel() * p.element_size() for p in model.parameters())
    return {"result": found, "right": right, "wrong": wrong, "held": seen.bytes, "budget": largest // 2}


def build(
    device: torch.device, seed: int, words: int, width: int, hidden: int, mixed: bool
) -> tuple[nn.Module, Any]:
    """A model with tied weights, a frozen layer and an unused one, after a step; gradients lie in one padded
    bucket.

    The optimizer has two groups. In bfloat16 with a float32 norm under mixed Adam; or all in float32 under torch's own.
    """
    seeded(seed)
    model = Net(words, width, hidden).to(device)
    if mixed:
        model = model.bfloat16()
        model.norm.float()
    optimizer: Any = MixedAdam(model.parameters()) if mixed else torch.optim.Adam(model.parameters())
    part_vectors(optimizer.adam if mixed else optimizer)
    model(torch.randint(words, (3, 5), device=device)).float().square().mean().backward()
    optimizer.step()
    bucket_gradients(list(model.up.parameters()) + [model.down.weight])
    return model, optimizer


class Net(nn.Module):
    """Embedding, norm, two products, and the embedding again as the last one; `spare` is never used."""

    def __init__(self, words: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(words, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.frozen, self.spare = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.last = nn.Linear(width, words, bias=False)
        self.last.weight = self.embedding.weight
        self.frozen.requires_grad_(False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        x = self.norm(x.to(self.norm.weight.dtype)).to(x.dtype)
        return self.last(self.frozen(self.down(self.up(x))))


def part_vectors(adam: torch.optim.Adam) -> None:
    """Move vectors into a second group, as for weights that do not decay."""
    first = adam.param_groups[0]
    vectors = [p for p in first["params"] if p.dim() == 1]
    first["params"] = [p for p in first["params"] if p.dim() > 1]
    adam.add_param_group({"params": vectors})


def bucket_gradients(parameters: list[Tensor]) -> None:
    """Move gradients into one array with a little padding, as data parallel does."""
    total = sum(p.numel() for p in parameters)
    bucket = torch.zeros(total + 32, dtype=parameters[0].dtype, device=parameters[0].device)
    begin = 0
    for p in parameters:
        view = bucket[begin : begin + p.numel()].view_as(p)
        p.grad, begin = view.copy_(p.grad), begin + p.numel()


def account(
    model: nn.Module,
    optimizer: Any,
    size: Size,
    steps: bool = False,
    own_master: bool = False,
    groups: int | None = None,
) -> dict[str, int]:
    """Bytes by kind, with `size` for the bytes of tensors; the flags make mistakes."""
    own = {id(p) for p in model.parameters()}
    stepped = [p for group in optimizer.param_groups[:groups] for p in group["params"]]
    moments = [
        tensor
        for state in optimizer.state.values()
        for name, tensor in state.items()
        if isinstance(tensor, Tensor) and (steps or name != "step")
    ]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    masters = [p for p in stepped if own_master or id(p) not in own]
    lists = (list(model.parameters()), gradients, masters, moments)
    return {kind: size(tensors, set()) for kind, tensors in zip(KINDS, lists, strict=True)}


def once(tensors: Iterable[Tensor], seen: set[int]) -> int:
    """Each storage once and whole."""
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def each_view(tensors: Iterable[Tensor], _: set[int]) -> int:
    """The storage behind each tensor, however often it comes."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def each_tensor(tensors: Iterable[Tensor], _: set[int]) -> int:
    """The elements of each tensor, whatever lies beside them."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def four_bytes(tensors: Iterable[Tensor], _: set[int]) -> int:
    """Every element 4 bytes."""
    return sum(4 * tensor.numel() for tensor in tensors)


def elements(tensors: Iterable[Tensor], _: set[int]) -> int:
    """Elements instead of bytes."""
    return sum(tensor.numel() for tensor in tensors)


def _trained(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def formulas(model: nn.Module) -> list[dict[str, int]]:
    """2 + 2 + 4 + 8 bytes for all parameters, or for those that are trained."""
    counts = {sum(p.numel() for p in some) for some in (model.parameters(), _trained(model))}
    return [dict(zip(KINDS, (2 * n, 2 * n, 4 * n, 8 * n), strict=True)) for n in counts]


def plain(value: Any) -> Any:
    """Counts as plain numbers, so that they travel and compare."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:  # a number of NumPy
        return value.item()
    return value if value is None or isinstance(value, bool | int | float) else repr(value)[:60]
