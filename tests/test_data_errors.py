"""What cannot be averaged is refused with the numbers and the fix."""

from __future__ import annotations

import pytest
import torch
from data_cases import new_model, share, squares
from rig import run_ranks
from torch import nn
from torch.utils.checkpoint import checkpoint

from tpcourse.data import DataParallel, average_in_buckets


def _refused(rank, group, what):
    """The sentence of the ValueError."""
    try:
        REFUSED[what](rank, group)
    except ValueError as error:
        return str(error)
    return ""


def _backward(rank, group, module, forward, **options):
    DataParallel(module, dp=group, **options)
    forward(module, torch.ones(1, 2)).sum().backward()


def _reentrant(rank, group):
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    again = lambda m, x: checkpoint(m[1], m[0](x), use_reentrant=True)  # noqa: E731
    _backward(rank, group, module, again)


class Fails(torch.autograd.Function):
    """An error on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        raise RuntimeError("on the way back")


def _after_an_error(rank, group):
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    DataParallel(module, dp=group, bucket_mb=1)
    with pytest.raises(RuntimeError, match="on the way back"):
        module[1](Fails.apply(module[0](torch.ones(1, 2)))).sum().backward()
    module(torch.ones(1, 2)).sum().backward()


def _other_group(rank, group):
    alone = torch.distributed.new_group([0], group_desc="dp")
    if rank == 1:
        DataParallel(nn.Linear(2, 2), dp=alone)
    raise ValueError("rank 1 is not in this group")


def _frozen(rank, group):
    DataParallel(nn.Linear(2, 2).requires_grad_(False), dp=group)


REFUSED = {
    "no parameter": lambda rank, group: DataParallel(nn.ReLU(), dp=group),
    "only frozen": _frozen,
    "bucket of 0": lambda rank, group: DataParallel(nn.Linear(2, 2), dp=group, bucket_mb=0),
    "negative bucket": lambda rank, group: DataParallel(nn.Linear(2, 2), dp=group, bucket_mb=-25),
    "first bucket of 0": lambda rank, group: DataParallel(nn.Linear(2, 2), dp=group, first_bucket_mb=0),
    "not a number": lambda rank, group: DataParallel(nn.Linear(2, 2), dp=group, bucket_mb=float("nan")),
    "bucket of 0 afterwards": lambda rank, group: average_in_buckets(nn.Linear(2, 2), dp=group, bucket_mb=0),
    "unused": lambda rank, group: _backward(rank, group, new_model(0).float(), lambda m, x: m(torch.ones(1, 5))),
    "re-entered": _reentrant,
    "error before": _after_an_error,
    "group": _other_group,
}

WORDS = {
    "no parameter": ["0 weights to train, 0 frozen", "give a module with parameters"],
    "only frozen": ["0 weights to train, 2 frozen", "requires_grad_()"],
    "bucket of 0": ["bucket_mb = 0 holds no gradient", "bucket_mb=25"],
    "negative bucket": ["bucket_mb = -25 holds no gradient"],
    "first bucket of 0": ["first_bucket_mb = 0 holds no gradient", "first_bucket_mb=25"],
    "not a number": ["bucket_mb = nan holds no gradient"],
    "bucket of 0 afterwards": ["bucket_mb = 0 holds no gradient"],
    "unused": ["2 of 9 weights got no gradient", "'spare.weight', 'spare.bias'", "allow_unused=True", "Freeze"],
    "re-entered": ["2 of 4 weights got no gradient", "use_reentrant=False"],
    "error before": ["'1.", "an earlier backward that never ended", "Make a new DataParallel"],
    "group": ["is not in this group"],
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_with_the_numbers_and_the_fix(what):
    for sentence in run_ranks(_refused, 2, what):
        assert all(words in sentence for words in WORDS[what]), sentence


def _after(rank, group):
    """The error of a weight that is not reached leaves a DataParallel that works."""
    module = new_model(0)
    DataParallel(module, dp=group)
    x, y = share(0, rank, 2)
    with pytest.raises(ValueError, match="spare"):
        squares(module, x, y).backward()
    module.zero_grad()
    (squares(module, x, y) + module.spare(torch.ones(1, 7, dtype=torch.float64)).sum()).backward()
    return module.spare.bias.grad.tolist()


def test_after_that_error_the_next_backward_works():
    assert run_ranks(_after, 2) == [[1.0, 1.0]] * 2


def _without_reentry(rank, group):
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    again = lambda m, x: checkpoint(m[1], m[0](x), use_reentrant=False)  # noqa: E731
    _backward(rank, group, module, again)
    return all(weight.grad is not None for weight in module.parameters())


def test_checkpoints_that_do_not_re_enter_work():
    assert all(run_ranks(_without_reentry, 2))
