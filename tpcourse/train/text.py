"""Text that every machine has: the source of Python's standard library, one token for each byte."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor

from tpcourse.dims import split_range

NUM_BYTES = 256
"""V, the number of different tokens."""


def source_tokens(num_tokens: int) -> Tensor:
    """The first bytes of the standard library's modules, in alphabetical order.

    Shapes: -> [num_tokens], uint8. Equal on all ranks that run the same Python.
    Raises: ValueError if there are not as many; the library's source may not be installed.
    """
    folder, text = Path(sysconfig.get_paths()["stdlib"]), bytearray()
    for path in sorted(folder.glob("*.py")):
        if len(text) < num_tokens:
            text += path.read_bytes()
    if not 0 < num_tokens <= len(text):
        raise ValueError(f"{num_tokens:,} tokens: the modules in {folder} have 1 to {len(text):,}")
    return torch.frombuffer(text, dtype=torch.uint8)[:num_tokens].clone()


def batch(
    tokens: Tensor, num_sequences: int, length: int, *, step: int, rank: int = 0, p: int = 1
) -> tuple[Tensor, Tensor]:
    """Rank r's share of the batch of a step, and the tokens that come next.

    The batch is drawn from the step's number alone, so it is the same however many ranks share it; shares are
    as even as possible, longer ones first, and may be empty.
    Shapes: tokens [n] -> two of [B_r, T], int64, where the B_r add up to `num_sequences`.
    Raises: ValueError if the text is shorter than a sequence, or rank is not one of p.
    """
    if len(tokens) <= length:
        raise ValueError(f"{len(tokens)} tokens are too few for sequences of {length}: give at least {length + 1}")
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(tokens) - length, (num_sequences,), generator=generator)
    first, end = split_range(num_sequences, p, rank)
    places = starts[first:end, None] + torch.arange(length + 1)  # [B_r, T + 1]
    sequences = tokens[places.to(tokens.device)].long()
    return sequences[:, :-1], sequences[:, 1:]
