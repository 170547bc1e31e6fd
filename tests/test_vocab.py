"""Embedding and cross-entropy over a split vocabulary are those of one device, in values and all gradients."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rig import run_ranks
from vocab_cases import SHAPE, D, V, equal, every_id, my_part, numbers, whole_cross_entropy, wrong_tensors

from tpcourse.dims import split_sizes
from tpcourse.vocab import vocab_cross_entropy, vocab_embedding, vocab_range

LOGITS = {
    "normal": lambda: numbers(0, *SHAPE, V),
    "huge": lambda: 1e4 * numbers(1, *SHAPE, V),
    "huge, and all below 0": lambda: -1e4 - numbers(2, *SHAPE, V).abs(),
    "a padded vocabulary": lambda: numbers(3, *SHAPE, V).index_fill(-1, torch.tensor([9, 10]), -torch.inf),
    "transposed": lambda: numbers(4, V, *reversed(SHAPE)).permute(2, 1, 0),
}
IGNORED = {"none": (), "some": (0, 3, 4, 14), "all": range(15)}


def _cross_entropy_faults(rank, group):
    """One sentence for each case in which this rank holds something else than one device."""
    found = []
    for which, positions in IGNORED.items():
        for reduction in ("mean", "sum", "none"):
            for smoothing in (0.0, 0.1, 1.0):
                options = {"reduction": reduction, "label_smoothing": smoothing}
                wrong = wrong_tensors(vocab_cross_entropy, group, LOGITS["normal"](), every_id(*positions), **options)
                found += [f"{name}: {which} ignored, {options}" for name in wrong]
    return found


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_cross_entropy_is_torch_s_with_every_reduction_smoothing_and_ignored_targets(p):
    assert run_ranks(_cross_entropy_faults, p) == [[]] * p


def _faults_of_logits(rank, group):
    targets = every_id(2).clamp(max=8)  # a padded word is nobody's target
    return [
        f"{name} of {what}, {reduction}"
        for what, make in LOGITS.items()
        for reduction in ("mean", "none")
        for name in wrong_tensors(vocab_cross_entropy, group, make(), targets, reduction=reduction)
    ]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_cross_entropy_of_huge_logits_does_not_overflow_and_padded_ones_count_nothing(p):
    assert run_ranks(_faults_of_logits, p) == [[]] * p


def _faults_of_shapes(rank, group):
    found = []
    for shape in ((), (4,), (0,), (2, 2, 2)):
        targets = torch.arange(8)[: max(0, torch.Size(shape).numel())].view(shape)
        wrong = wrong_tensors(vocab_cross_entropy, group, numbers(0, *shape, V), targets, reduction="sum")
        found += [f"{name} of targets of shape {list(shape)}" for name in wrong]
    for ignore_index in (0, 5, V - 1, V, -1):
        options = {"ignore_index": ignore_index, "label_smoothing": 0.1}
        targets = every_id(1, 7, ignore_index=ignore_index)
        wrong = wrong_tensors(vocab_cross_entropy, group, numbers(0, *SHAPE, V), targets, **options)
        found += [f"{name} with {options}" for name in wrong]
    return found


@pytest.mark.parametrize("p", [2, 3, 4])
def test_any_shape_of_targets_and_any_ignore_index_will_do(p):
    assert run_ranks(_faults_of_shapes, p) == [[]] * p


def _faults_in_16_bits(rank, group):
    found = []
    for dtype, scale in ((torch.bfloat16, 3), (torch.bfloat16, 1e4), (torch.float16, 1e4)):
        whole = (scale * numbers(0, *SHAPE, V)).to(dtype).requires_grad_()
        mine = my_part(whole.detach(), group).requires_grad_()
        targets = every_id(2)
        loss = vocab_cross_entropy(mine, targets, tp=group, V=V, label_smoothing=0.1)
        expected = whole_cross_entropy(whole.float(), targets, label_smoothing=0.1)
        loss.backward()
        expected.backward()
        if loss.dtype != torch.float32 or not torch.allclose(loss, expected, rtol=1e-6):
            found.append(f"{dtype} x {scale}: loss {loss} of {loss.dtype}, expected {expected}")
        one_rounding = torch.finfo(dtype).eps
        if not torch.allclose(mine.grad, my_part(whole.grad, group), rtol=one_rounding, atol=1e-7):
            found.append(f"{dtype} x {scale}: dlogits {mine.grad}, expected {my_part(whole.grad, group)}")
    return found


@pytest.mark.parametrize("p", [2, 3])
def test_logits_of_16_bits_have_the_loss_of_float32_and_gradients_in_their_own_dtype(p):
    assert run_ranks(_faults_in_16_bits, p) == [[]] * p


def test_arithmetic_in_16_bits_would_not_pass_that():
    logits = (3 * numbers(0, *SHAPE, V)).bfloat16()
    right, wrong = (whole_cross_entropy(x, every_id(2)) for x in (logits.float(), logits))
    assert not torch.allclose(wrong.float(), right, rtol=1e-4)


def _embedding_faults(rank, group):
    """Every id, pieces of odd T along dim 0 and 1, and fewer tokens than ranks."""
    found, p = [], dist.get_world_size(group)
    weight = numbers(0, V, D)
    for tokens in (every_id(ignore_index=0), torch.arange(V).view(1, V).flip(1), torch.tensor([[10], [10], [3]])):
        for sequence_dim in (None, 0, 1):
            whole, mine = weight.clone().requires_grad_(), my_part(weight, group, 0).requires_grad_()
            y = F.embedding(tokens, whole)
            dy = numbers(1, *y.shape)
            y.backward(dy)
            got = vocab_embedding(tokens, mine, tp=group, V=V, sequence_dim=sequence_dim)
            if sequence_dim is not None:
                sizes = split_sizes(tokens.shape[sequence_dim], p)
                y, dy = (x.split(sizes, sequence_dim)[rank] for x in (y, dy))
            got.backward(dy)
            pairs = {"y": (got, y), "dweight": (mine.grad, my_part(whole.grad, group, 0))}
            found += [
                f"{name} of tokens {list(tokens.shape)}, sequence_dim = {sequence_dim}"
                for name, (a, b) in pairs.items()
                if a.shape != b.shape or not equal(a, b)
            ]
    return found


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_embedding_is_torch_s_whole_or_in_pieces_of_the_tokens(p):
    assert run_ranks(_embedding_faults, p) == [[]] * p


def _embedding_of_bytes(rank, group):
    """uint8 ids, with V above 255: `tokens - start` must not wrap around."""
    weight = numbers(0, 300, D, dtype=torch.bfloat16)
    tokens = torch.tensor([0, 99, 100, 149, 150, 255], dtype=torch.uint8)
    y = vocab_embedding(tokens, my_part(weight, group, 0), tp=group, V=300)
    return y.dtype == torch.bfloat16 and torch.equal(y, weight[tokens.long()])


@pytest.mark.parametrize("p", [2, 3])
def test_embedding_of_bytes_in_bfloat16_is_exact(p):
    assert run_ranks(_embedding_of_bytes, p) == [True] * p


def _ranges(rank, group):
    return [vocab_range(n, group) for n in (3, V, 12)]


def test_the_parts_of_the_vocabulary_fill_it_and_the_longer_ones_come_first():
    assert run_ranks(_ranges, 3) == [[(0, 1), (0, 4), (0, 4)], [(1, 2), (4, 8), (4, 8)], [(2, 3), (8, 11), (8, 12)]]
    assert vocab_range(V, None) == (0, V)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_one_device_is_the_plain_operation_of_torch(reduction):
    logits, weight, targets = numbers(0, *SHAPE, V), numbers(1, V, D), every_id(1, 2)
    options = {"reduction": reduction, "label_smoothing": 0.1}
    loss = vocab_cross_entropy(logits, targets, tp=None, V=V, **options)
    assert torch.equal(loss, whole_cross_entropy(logits, targets, **options))
    tokens = every_id()
    assert torch.equal(vocab_embedding(tokens, weight, tp=None, V=V, sequence_dim=1), F.embedding(tokens, weight))


def test_one_device_calculates_in_float32_too():
    logits = numbers(0, *SHAPE, V, dtype=torch.bfloat16)
    loss = vocab_cross_entropy(logits, every_id(), tp=None, V=V)
    assert torch.equal(loss, whole_cross_entropy(logits.float(), every_id()))


def _second_gradients(rank, group):
    said = []
    for reduction in ("mean", "none"):
        logits = my_part(numbers(0, *SHAPE, V), group).requires_grad_()
        loss = vocab_cross_entropy(logits, every_id(), tp=group, V=V, reduction=reduction)
        (dx,) = torch.autograd.grad(loss, logits, torch.ones_like(loss, requires_grad=True), create_graph=True)
        try:
            dx.square().sum().backward()
            said.append("taken")
        except RuntimeError as error:
            said.append(str(error)[:35])
    return said


def test_a_gradient_of_the_gradient_is_refused_and_not_wrong():
    assert run_ranks(_second_gradients, 2) == [["trying to differentiate twice a fun"] * 2] * 2
