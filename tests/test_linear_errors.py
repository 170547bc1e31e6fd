"""What columns and rows refuse, on every rank alike, with the numbers and the way out."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ledger_help import fresh_ledger
from rig import run_ranks

from tpcourse.ledger import ledger
from tpcourse.linear import column_linear, gather_columns, row_linear

CASES = [  # kernel, shapes of x, weight and bias, options, what the sentence has
    (column_linear, ([2, 6], [3, 5], None), {}, ["6 columns", "[3, 5] takes 5", "whole in D"]),
    (column_linear, ([2, 5], [3, 5], [12]), {}, ["bias has shape [12]", "3 rows", "[F/p]"]),
    (column_linear, ([2, 5], [3, 5, 1], None), {}, ["weight [3, 5, 1]", "[out, in]"]),
    (column_linear, ([], [3, 5], None), {}, ["shape []", "[.., in]"]),
    (column_linear, ([2, 5], [3, 5], None), {"regather": True}, ["regather = True", "sequence_dim=1"]),
    (column_linear, ([2, 4, 5], [3, 5], None), {"sequence_dim": 2}, ["sequence_dim = 2", "[2, 4, 5]", "use 1"]),
    (column_linear, ([2, 4, 5], [3, 5], None), {"sequence_dim": -1}, ["sequence_dim = -1", "use 1"]),
    (column_linear, ([2, 4, 5], [3, 5], None), {"sequence_dim": 3}, ["sequence_dim = 3"]),
    (column_linear, ([5], [3, 5], None), {"sequence_dim": 0}, ["sequence_dim = 0", "[5]"]),
    (
        column_linear, ([2, 4, 5], [3, 5], None), {"sequence_dim": 1, "num_tokens": 11},
        ["4 tokens", "num_tokens = 11", "[6, 5]", "counts the tokens of all ranks"],
    ),
    (row_linear, ([2, 6], [5, 3], None), {}, ["6 columns", "[5, 3] takes 3", "not gathered", "p = 2"]),
    (row_linear, ([2, 3], [5, 3], [3]), {}, ["bias has shape [3]", "y is 5 wide", "whole on every rank"]),
    (row_linear, ([2, 4, 3], [5, 3], None), {"sequence_dim": 2}, ["sequence_dim = 2"]),
]  # fmt: skip


def _refused(rank, group):
    """What each case says, and how many calls were made before."""
    found = []
    for kernel, shapes, options, _ in CASES:
        tensors = [None if shape is None else torch.ones(shape) for shape in shapes]
        with fresh_ledger(), ledger() as log, pytest.raises(ValueError) as error:  # noqa: PT011 (the texts are compared)
            kernel(*tensors, tp=group, **options)
        found.append((str(error.value), log.num_calls))
    return found


def test_what_does_not_fit_is_refused_on_every_rank_before_anything_is_sent():
    for found in run_ranks(_refused, 2):
        for (said, num_calls), (*_, words) in zip(found, CASES, strict=True):
            assert [word for word in words if word not in said] == [], said
            assert num_calls == 0


def _outside(rank, group):
    """A rank that is not in the group."""
    pair = dist.new_group([0, 1], group_desc="pair")
    said = []
    if rank == 2:
        x, weight = torch.ones(2, 3), torch.ones(4, 3)
        for call in (column_linear, row_linear):
            with pytest.raises(ValueError, match="rank 2 is not in this group") as error:
                call(x, weight, tp=pair)
            said.append(str(error.value))
        with pytest.raises(ValueError, match="rank 2 is not in this group"):
            gather_columns(x, tp=pair)
    return len(said)


def test_a_rank_outside_the_group_is_told_so():
    assert run_ranks(_outside, 3) == [0, 0, 2]
