"""The formulas are what the ledger sees of the algorithms in `tpcourse.wire`."""

from __future__ import annotations

import pytest
import torch
from rig import run_ranks

from tpcourse import costs, draw, wire
from tpcourse import ledger as books
from tpcourse.dims import split_sizes

N = 840  # divides by every p below, and by its largest power of two
ITEM = 8


def _log(rank, group, kernel, lengths):
    books.install()
    x = torch.ones(lengths[rank], dtype=torch.float64)
    with books.ledger() as log:
        getattr(wire, kernel)(x, group=group)
    return log


def rounds_of(op, kernel, p):
    """The messages of a run, and their bytes: of each round only the largest, as the others travel beside it."""
    lengths = split_sizes(N, p) if op in ("gather", "all_gather") else [N] * p
    largest = {}
    for message in draw.steps(run_ranks(_log, p, kernel, lengths)):
        largest[message.step] = max(largest.get(message.step, 0), message.bytes)
    return len(largest), sum(largest.values()) / ITEM


@pytest.mark.parametrize("p", [2, 3, 4, 7])
@pytest.mark.parametrize(("op", "algorithm"), costs.ALGORITHMS)
def test_steps_and_bytes_of_a_formula_are_the_rounds_of_the_algorithm_and_their_largest_messages(op, algorithm, p):
    said = costs.ALGORITHMS[op, algorithm]
    steps, elements = rounds_of(op, said.kernel, p)
    assert (steps, elements) == (said.steps(p), pytest.approx(said.arrays(p) * N))


def test_every_algorithm_of_lesson_01_has_a_formula():
    ways = ("naive", "ring", "tree", "halving", "doubling", "pairwise")
    kernels = {name for name in wire.__all__ if name.startswith(ways)}
    assert {algorithm.kernel for algorithm in costs.ALGORITHMS.values()} == kernels
