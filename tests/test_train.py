"""Text, model and training step: the same on one device and on ranks, on real text."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ledger_help import fresh_ledger
from rig import run_ranks

from tpcourse.data import DataParallel
from tpcourse.ledger import ledger
from tpcourse.train import GPT, NUM_BYTES, accumulate, batch, loss_sum, source_tokens, train_step

SIZES = {"T": 12, "D": 16, "H": 2, "L": 2}
SEQUENCES = 5


def test_the_text_is_the_source_of_the_standard_library():
    tokens = source_tokens(2000)
    first = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    assert bytes(tokens.tolist()) == b"".join(path.read_bytes() for path in first[:4])[:2000]
    assert tokens.dtype == torch.uint8 and NUM_BYTES == 256


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
def test_the_shares_of_a_batch_are_the_batch_however_many_ranks_share_it(p):
    tokens = source_tokens(5000)
    x, y = batch(tokens, SEQUENCES, 12, step=3)
    shares = [batch(tokens, SEQUENCES, 12, step=3, rank=rank, p=p) for rank in range(p)]
    assert torch.equal(torch.cat([share[0] for share in shares]), x)
    assert torch.equal(torch.cat([share[1] for share in shares]), y)
    assert x.shape == y.shape == (SEQUENCES, 12) and torch.equal(x[:, 1:], y[:, :-1])


def test_each_step_has_a_batch_of_its_own():
    tokens = source_tokens(5000)
    assert torch.equal(batch(tokens, 2, 9, step=1)[0], batch(tokens, 2, 9, step=1)[0])
    assert not torch.equal(batch(tokens, 2, 9, step=1)[0], batch(tokens, 2, 9, step=2)[0])


def test_the_gpt_has_12_l_d_squared_weights_in_its_blocks_and_one_tied_matrix():
    model = GPT(V=100, T=12, D=16, H=2, L=3)
    matrices = sum(w.numel() for name, w in model.named_parameters() if "blocks" in name and w.dim() == 2)
    assert matrices == 12 * 3 * 16**2
    assert model.head.weight is model.tokens.weight
    assert GPT(V=100, T=12, D=16, H=2, L=3, tied=False).head.weight.shape == (100, 16)


def test_the_gpt_looks_at_no_later_token():
    torch.manual_seed(0)
    model, tokens = GPT(**SIZES).double(), torch.randint(NUM_BYTES, (1, 12))
    other = tokens.clone()
    other[0, 7:] = (other[0, 7:] + 1) % NUM_BYTES
    same = (model(tokens) == model(other)).all(-1)[0]
    assert same[:7].all() and not same[7:].any()


def one_device(steps):
    torch.manual_seed(0)
    model = GPT(**SIZES).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tokens = source_tokens(5000)
    losses = [train_step(model, optimizer, *batch(tokens, SEQUENCES, 12, step=step)).item() for step in range(steps)]
    return [w.detach() for w in model.parameters()], losses


def _on_ranks(rank, group, steps, micro_batches):
    p = dist.get_world_size(group)
    torch.manual_seed(rank)
    model = GPT(**SIZES).double()
    parallel = DataParallel(model, dp=group, bucket_mb=0.01, first_bucket_mb=0.001)
    if rank:
        torch.manual_seed(123)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tokens, losses = source_tokens(5000), []
    for step in range(steps):
        share = batch(tokens, SEQUENCES, 12, step=step, rank=rank, p=p)
        losses.append(train_step(model, optimizer, *share, parallel=parallel, micro_batches=micro_batches).item())
    return [w.detach() for w in model.parameters()], losses


@pytest.mark.parametrize(("p", "micro_batches"), [(2, 1), (3, 2), (4, 1)])
def test_a_gpt_trained_on_uneven_shares_of_real_text_has_the_weights_and_losses_of_one_device(p, micro_batches):
    weights, losses = one_device(10)
    found = run_ranks(_on_ranks, p, 10, micro_batches)
    for mine, _ in found:
        assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(mine, weights, strict=True))
    means = [sum(row) / p for row in zip(*(row for _, row in found), strict=True)]
    assert means == pytest.approx(losses, rel=1e-6)
    assert losses[-1] < losses[0]


def _mean_of_means(model, x, y):
    return loss_sum(model, x, y) / max(1, y.numel())


def _wrong_step(rank, group):
    """The ranks' means averaged: shares of 3 and 2 sequences."""
    model = _fresh()
    DataParallel(model, dp=group)
    x, y = batch(source_tokens(5000), SEQUENCES, 12, step=0, rank=rank, p=2)
    _mean_of_means(model, x, y).backward()
    return [w.grad.clone() for w in model.parameters()]


def _right_step(rank, group):
    model = _fresh()
    parallel = DataParallel(model, dp=group)
    accumulate(model, *batch(source_tokens(5000), SEQUENCES, 12, step=0, rank=rank, p=2), parallel=parallel)
    return [w.grad.clone() for w in model.parameters()]


def _fresh():
    torch.manual_seed(0)
    return GPT(**SIZES).double()


def test_means_of_uneven_shares_averaged_are_not_the_gradients_of_one_device():
    model = _fresh()
    accumulate(model, *batch(source_tokens(5000), SEQUENCES, 12, step=0))
    expected = [w.grad for w in model.parameters()]
    close = lambda got: all(torch.allclose(a, b, rtol=1e-9, atol=1e-14) for a, b in zip(got, expected, strict=True))  # noqa: E731
    assert all(map(close, run_ranks(_right_step, 2)))
    assert not any(map(close, run_ranks(_wrong_step, 2)))


def _calls(rank, group, micro_batches):
    model = _fresh()
    parallel = DataParallel(model, dp=group, bucket_mb=0.01)
    optimizer = torch.optim.Adam(model.parameters())
    share = batch(source_tokens(5000), SEQUENCES, 12, step=0, rank=rank, p=2)
    with fresh_ledger(), ledger() as log:
        train_step(model, optimizer, *share, parallel=parallel, micro_batches=micro_batches)
    return log.num_calls, len(parallel.buckets)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_a_step_sends_its_buckets_and_one_number_whatever_the_number_of_micro_batches(micro_batches):
    for num_calls, num in run_ranks(_calls, 2, micro_batches):
        assert num_calls == num + 1 > 4


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 5, 7])
def test_micro_batches_of_any_length_give_the_gradients_of_the_whole_batch(micro_batches):
    whole, parts = _fresh(), _fresh()
    x, y = batch(source_tokens(5000), SEQUENCES, 12, step=0)
    mean = accumulate(whole, x, y)
    again = accumulate(parts, x, y, micro_batches=micro_batches)
    assert again.item() == pytest.approx(mean.item(), rel=1e-6)
    pairs = zip(whole.parameters(), parts.parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-9, atol=1e-14) for a, b in pairs)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: source_tokens(0), "0 tokens.*have 1 to"),
        (lambda: source_tokens(10**12), "1,000,000,000,000 tokens"),
        (lambda: batch(source_tokens(8), 2, 8, step=0), "8 tokens are too few for sequences of 8: give at least 9"),
        (lambda: batch(source_tokens(99), 2, 8, step=0, rank=2, p=2), "rank 2 is not one of 2"),
        (lambda: GPT(D=10, H=4), "D = 10 does not divide by H = 4 heads: use D = 8 or 12"),
        (lambda: accumulate(_fresh(), *batch(source_tokens(99), 2, 8, step=0), micro_batches=0), "micro_batches = 0"),
    ],
)
def test_bad_input_is_answered_with_the_numbers_and_the_fix(call, words):
    with pytest.raises(ValueError, match=re.compile(words)):
        call()
