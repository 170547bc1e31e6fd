"""Wrong kernels for a split vocabulary, and the tensors in which the tests of test_vocab.py find each of them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rig import run_ranks
from torch import Tensor
from vocab_cases import IGNORED, SHAPE, D, V, equal, every_id, my_part, numbers, wrong_tensors

from tpcourse import wire
from tpcourse.conjugates import split_gather, sum_copy
from tpcourse.vocab import vocab_range


class SumSum(torch.autograd.Function):
    """All-reduce both ways."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return wire.all_reduce(x, group=group)

    @staticmethod
    def backward(ctx, dy):
        return wire.all_reduce(dy, group=ctx.group), None


def plain_kernel(logits: Tensor, targets: Tensor, *, tp, V: int, reduction: str = "mean", flaw: str = "") -> Tensor:
    """The cross-entropy once more, by autograd and without smoothing, with one flaw on demand."""
    start, end = vocab_range(V, tp)
    largest, ignored = logits.detach().amax(-1), targets == IGNORED
    if flaw not in ("maximum not shared", "softmax over the local vocabulary"):
        largest = wire.all_reduce(largest, group=tp, op="max")
    shifted = logits - largest.unsqueeze(-1)
    kept_local = ("sum of exponentials not summed", "softmax over the local vocabulary")
    sum_exp = _sum(shifted.exp().sum(-1), tp, flaw, *kept_local)
    index = (targets - start).clamp(0, end - start - 1)
    of_target = shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    mine = (targets >= start) & (targets < end)
    if flaw == "shards that overlap at the edge":
        mine = (targets >= start) & (targets <= end)
    if flaw == "softmax over the local vocabulary":
        of_target = of_target - sum_exp.log()
        sum_exp = torch.ones_like(sum_exp)
    if flaw != "target outside the shard counted":
        of_target = of_target.masked_fill(~mine, 0)
    losses = sum_exp.log() - _sum(of_target, tp, flaw, "target's logit not summed")
    losses = losses.masked_fill(ignored, 0) if flaw != "ignored targets have a loss" else losses
    if reduction == "none":
        return losses
    count = targets.numel() if flaw == "ignored targets counted in the mean" else (~ignored).sum()
    return losses.sum() / count if reduction == "mean" else losses.sum()


def _sum(x: Tensor, tp: dist.ProcessGroup, flaw: str, *skipped_for: str) -> Tensor:
    if flaw in skipped_for:
        return x
    return SumSum.apply(x, tp) if flaw == "gradient summed again in backward" else sum_copy(x, group=tp)


def _wrong(rank, group, flaw):
    """For each reduction, the tensors that are wrong; 2 of 15 targets are ignored."""

    def kernel(*args, **options):
        return plain_kernel(*args, flaw=flaw, **options)

    logits, targets = numbers(0, *SHAPE, V), every_id(0, 14)
    return {how: wrong_tensors(kernel, group, logits, targets, reduction=how) for how in ("mean", "sum", "none")}


BOTH, EVERYWHERE = ["loss", "dlogits"], ("mean", "sum", "none")


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize(
    ("flaw", "tensors", "reductions"),
    [
        ("", [], EVERYWHERE),
        ("softmax over the local vocabulary", BOTH, EVERYWHERE),
        ("target outside the shard counted", BOTH, EVERYWHERE),
        ("maximum not shared", BOTH, EVERYWHERE),
        ("sum of exponentials not summed", BOTH, EVERYWHERE),
        ("target's logit not summed", ["loss"], EVERYWHERE),
        ("shards that overlap at the edge", BOTH, EVERYWHERE),
        ("gradient summed again in backward", ["dlogits"], EVERYWHERE),
        ("ignored targets counted in the mean", BOTH, ("mean",)),
        ("ignored targets have a loss", BOTH, EVERYWHERE),
    ],
)
def test_a_flaw_of_a_cross_entropy_is_found_in_its_own_tensors(flaw, tensors, reductions, p):
    """On at least one rank: the last rank has no edge that another one shares."""
    found = run_ranks(_wrong, p, flaw)
    for how in EVERYWHERE:
        named = {name for wrong in found for name in wrong[how]}
        assert named == set(tensors if how in reductions else []), how


def _embedding(tokens: Tensor, weight: Tensor, tp: dist.ProcessGroup, sequence_dim: int | None, flaw: str) -> Tensor:
    """The embedding once more, with one flaw on demand."""
    start, end = vocab_range(V, tp)
    mine = (tokens >= start) & (tokens < end)
    rows = F.embedding((tokens - start).clamp(0, end - start - 1), weight)
    if flaw != "row of another rank counted":
        rows = rows.masked_fill(~mine.unsqueeze(-1), 0)
    y = _sum(rows, tp, flaw, "not summed")
    if sequence_dim is None:
        return y
    if flaw == "gradients of other ranks' tokens not gathered":
        return y.tensor_split(dist.get_world_size(tp), sequence_dim)[dist.get_rank(tp)]
    return split_gather(y, group=tp, dim=sequence_dim)


def _wrong_embedding(rank, group, flaw, sequence_dim):
    tokens, whole = every_id(ignore_index=0), numbers(0, V, D).requires_grad_()
    mine = my_part(whole.detach(), group, 0).requires_grad_()
    y = F.embedding(tokens, whole)
    dy = numbers(1, *y.shape)
    y.backward(dy)
    if sequence_dim is not None:
        y, dy = (x.tensor_split(dist.get_world_size(group), sequence_dim)[rank] for x in (y, dy))
    found = _embedding(tokens, mine, group, sequence_dim, flaw)
    found.backward(dy)
    pairs = {"y": (found, y), "dweight": (mine.grad, my_part(whole.grad, group, 0))}
    return [name for name, (a, b) in pairs.items() if not equal(a, b)]


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize(
    ("flaw", "tensors", "sequence_dim"),
    [
        ("", [], None),
        ("", [], 1),
        ("row of another rank counted", ["y", "dweight"], None),
        ("not summed", ["y"], None),
        ("gradient summed again in backward", ["dweight"], None),
        ("gradients of other ranks' tokens not gathered", ["dweight"], 1),
    ],
)
def test_a_flaw_of_an_embedding_is_found_in_its_own_tensors(flaw, tensors, sequence_dim, p):
    found = run_ranks(_wrong_embedding, p, flaw, sequence_dim)
    assert {name for wrong in found for name in wrong} == set(tensors)
