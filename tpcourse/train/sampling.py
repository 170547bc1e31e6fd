"""Text from a model of bytes, one byte after the other, with the vocabulary whole or split over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tpcourse import wire
from tpcourse.dims import split_range
from tpcourse.train.text import NUM_BYTES
from tpcourse.wire.inputs import place


@torch.no_grad()
def sample(
    model: nn.Module,
    prompt: str,
    num_tokens: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    length: int | None = None,
    tp: dist.ProcessGroup | None = None,
) -> str:
    """The prompt and the `num_tokens` bytes with which the model goes on, the same on all ranks and for any p.

    Gumbel-max: argmax_v (logit_v / temperature + g_v), with g_v = -ln(-ln u_v) and u_v uniform, is v with the
    probability softmax(logits / temperature)_v. The noise of each position comes from the seed alone, so each rank
    finds the best of its own logits, and only these p winners meet. Temperature 0 takes the likeliest byte.
    The model reads the last T bytes, T its `config.T` or `length`. What is no UTF-8, or no printable character,
    is shown as U+FFFD.
    Shapes: model [1, T] -> [1, T, V_r], this rank's rows of the vocabulary.
    Traffic: for each byte, what the model sends, and one all-gather of 2 numbers: 16 (p-1) bytes.
    Raises: ValueError for an empty prompt, a negative number or temperature, a length below 1, a model without
    `config.T`, or logits that are not this rank's share of the vocabulary.
    """
    tokens = list(prompt.encode("utf-8", errors="replace"))
    _require(tokens, num_tokens, temperature)
    window, generator = _window(model, length), torch.Generator().manual_seed(seed)
    with _without_dropout(model):
        for _ in range(num_tokens):
            logits = _last_logits(model, tokens[-window:], window)
            tokens.append(_choose(logits, temperature, generator, _vocabulary(model), tp))
    return readable(bytes(tokens))


def readable(text: bytes) -> str:
    """Bytes as text, whatever they are; what cannot be shown is U+FFFD, line ends and tabs apart."""
    characters = text.decode("utf-8", errors="replace")
    return "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in characters)


def _last_logits(model: nn.Module, tokens: list[int], window: int) -> Tensor:
    """Logits of the token that comes next, [V_r]. The input is filled up to its full length, which every kind
    of splitting can cut; no token sees what comes after it.
    """
    device = next(model.parameters()).device
    x = torch.tensor([tokens + [0] * (window - len(tokens))], device=device)  # [1, T]
    return model(x)[0, len(tokens) - 1].double()


def _choose(
    logits: Tensor, temperature: float, generator: torch.Generator, V: int, tp: dist.ProcessGroup | None
) -> int:
    """The byte with the best score. Shapes: logits [V_r]."""
    rank, p = (0, 1) if tp is None else place(tp)
    start, end = split_range(V, p, rank)
    if len(logits) != end - start:
        raise ValueError(
            f"{len(logits)} logits on rank {rank} of {p}, not {end - start} of a vocabulary of {V}: pass the group "
            "that the model is split over, tp=..., or None for a model on one device"
        )
    noise = -torch.empty(V, dtype=torch.float64).exponential_(generator=generator).log()  # [V], on every rank
    scores = logits / temperature + noise[start:end].to(logits.device) if temperature else logits.clone()
    scores[max(0, NUM_BYTES - start) :] = -torch.inf  # a vocabulary may be longer than there are bytes
    score, index = scores.max(0)  # the first of equals
    winner = torch.stack([score, (index + start).double()])[None]  # [1, 2]
    winners = winner if tp is None else wire.all_gather(winner, group=tp)  # [p, 2]
    return int(winners[winners[:, 0].argmax(), 1])


def _window(model: nn.Module, length: int | None) -> int:
    config = getattr(model, "config", None)
    if length is not None:
        if length < 1:
            raise ValueError(f"length = {length}: how many tokens the model reads, 1 or more")
        return length
    if config is None:
        raise ValueError("this model has no config.T: say how many tokens it reads, for example length=64")
    return config.T


def _vocabulary(model: nn.Module) -> int:
    return getattr(getattr(model, "config", None), "V", NUM_BYTES)


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[Any]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _require(tokens: list[int], num_tokens: int, temperature: float) -> None:
    if not tokens:
        raise ValueError("the prompt is empty, 0 bytes: give the model one character or more to go on from")
    if num_tokens < 0:
        raise ValueError(f"num_tokens = {num_tokens}: give 0 or more")
    if not temperature >= 0:
        raise ValueError(f"temperature = {temperature}: give 0 for the likeliest byte, or a number above it")
