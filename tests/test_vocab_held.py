"""What a split vocabulary sends and holds: a few numbers a token, and never the whole logits; and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from ledger_help import logged
from rig import run_ranks
from vocab_cases import D, every_id, my_part, numbers

from tpcourse import memory, wire
from tpcourse.dims import split_sizes
from tpcourse.vocab import vocab_cross_entropy, vocab_embedding, vocab_range

N, WORDS = 40, 2002  # 2002 = 1001 + 1001 = 668 + 667 + 667 = 501 + 501 + 500 + 500
TOKENS = (torch.arange(N) * 37).view(5, 8)


def _up(*fractions: tuple[int, int]) -> int:
    """Bytes of calls, each rounded up to a whole byte as the ledger does."""
    return sum(-(-above // below) for above, below in fractions)


def _result_and_log(fn, *args, **options):
    results = []
    log = logged(lambda: results.append(fn(*args, **options)))
    return results[0], log


def _calls_of_loss(rank, group, dtype):
    """(operations, bytes sent) forward and backward, for two vocabularies, without and with smoothing."""
    said = {}
    for words in (11, WORDS):
        for smoothing in (0.0, 0.1):
            logits = my_part(numbers(0, 5, 8, words, dtype=dtype), group).requires_grad_()
            options = {"tp": group, "V": words, "label_smoothing": smoothing}
            loss, forward = _result_and_log(vocab_cross_entropy, logits, TOKENS % words, **options)
            backward = logged(loss.backward)
            said[words, smoothing] = [([e.op for e in log.events], log.bytes_sent) for log in (forward, backward)]
            said[words, smoothing].append([e.reduction for e in forward.events])
    return said


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize(("dtype", "item"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 4)])
def test_a_loss_sends_three_numbers_a_token_or_four_with_smoothing_whatever_the_vocabulary(p, dtype, item):
    maxima, ops = (2 * (p - 1) * N * item, p), ["all_reduce", "all_reduce"]
    for said in run_ranks(_calls_of_loss, p, dtype):
        for (_, smoothing), (forward, backward, reductions) in said.items():
            sums = (2 * (p - 1) * (3 if smoothing else 2) * N * item, p)
            assert forward == (ops, _up(maxima, sums))
            assert backward == ([], 0)
            assert [name.lower() for name in reductions] == ["max", "sum"]


def _calls_of_embedding(rank, group):
    said = {}
    for words in (11, WORDS):
        weight = my_part(numbers(0, words, D), group, 0).requires_grad_()
        for sequence_dim in (None, 0, 1):
            options = {"tp": group, "V": words, "sequence_dim": sequence_dim}
            y, forward = _result_and_log(vocab_embedding, TOKENS % words, weight, **options)
            backward = logged(y.backward, torch.ones_like(y))
            said[words, sequence_dim] = [([e.op for e in log.events], log.bytes_sent) for log in (forward, backward)]
    return said


@pytest.mark.parametrize("p", [2, 3, 4])
def test_an_embedding_sends_one_all_reduce_or_a_reduce_scatter_and_an_all_gather(p):
    """Uneven pieces travel as long as the longest: 5 tokens on 4 ranks as 8, 8 on 3 ranks as 9."""
    for said in run_ranks(_calls_of_embedding, p):
        for (_, sequence_dim), (forward, backward) in said.items():
            if sequence_dim is None:
                assert forward == (["all_reduce"], _up((2 * (p - 1) * N * D * 8, p)))
                assert backward == ([], 0)
            else:
                length, others = ((5, 8), (8, 5))[sequence_dim]
                one_way = (p - 1) * -(-length // p) * others * D * 8
                assert forward == (["reduce_scatter"], one_way)
                assert backward == (["all_gather"], one_way)


def _bytes_kept(rank, group):
    """By dtype and smoothing: the large tensors kept for backward, all that is kept, and this rank's words."""
    start, end = vocab_range(WORDS, group)
    said = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for smoothing in (0.0, 0.1):
            logits = my_part(numbers(0, 5, 8, WORDS, dtype=dtype), group).requires_grad_()
            options = {"tp": group, "V": WORDS, "label_smoothing": smoothing}
            kept = memory.saved(vocab_cross_entropy, logits, TOKENS, **options)
            large = [one.bytes for one in kept.kept if one.bytes >= N * (end - start)]
            said[dtype.itemsize, smoothing] = large, kept.bytes, end - start
    return said


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_loss_keeps_its_part_of_the_logits_and_a_few_numbers_a_token(p):
    for said in run_ranks(_bytes_kept, p):
        for (item, smoothing), (large, kept, words) in said.items():
            assert large == [N * words * item]
            statistics = (4 if smoothing else 3) * max(item, 4)  # what was all-reduced
            a_token = statistics + 8 + 1  # its target, and whether that is ignored
            assert kept == N * (words * item + a_token) + 8, "8 for the number of targets"


def _peak(rank: int, fn: Callable[..., object], *args: object) -> int:
    """Bytes at the peak on rank 0, which has the longest part; elsewhere nobody looks, which is faster."""
    if rank > 0:
        fn(*args)
        return 0
    with memory.peak() as seen:
        fn(*args)
    return seen.bytes


def _step(logits, options):
    vocab_cross_entropy(logits, TOKENS, **options).backward()


def _gathered_loss(logits, group):
    whole = wire.all_gather(logits.detach(), group=group, dim=-1, sizes=split_sizes(WORDS, 4))
    F.cross_entropy(whole.flatten(0, 1), TOKENS.flatten())


def _peaks(rank, group):
    """Of a forward and a backward, by dtype: our loss, and a loss of gathered logits."""
    peaks = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        logits = my_part(numbers(0, 5, 8, WORDS, dtype=dtype), group).requires_grad_()
        options = {"tp": group, "V": WORDS, "label_smoothing": 0.1}
        ours = _peak(rank, _step, logits, options)
        peaks[dtype.itemsize] = ours, _peak(rank, _gathered_loss, logits, group)
    return peaks


def test_a_loss_never_holds_the_whole_logits_and_one_of_gathered_logits_is_seen_to_hold_them():
    """At its peak ours holds one tensor of its part to calculate in, and for 16 bits the gradient beside it."""
    for item, (ours, gathered) in run_ranks(_peaks, 4)[0].items():
        part = N * -(-WORDS // 4)
        assert part * item < ours <= part * (6 if item == 2 else item) + 100 * N
        assert ours < N * WORDS * item <= gathered


def _peak_of_embedding(rank, group):
    weight = my_part(numbers(0, WORDS, 64), group, 0).requires_grad_()

    def embed():
        vocab_embedding(TOKENS, weight, tp=group, V=WORDS).sum().backward()

    return weight.nbytes, _peak(rank, embed)


def test_an_embedding_holds_its_rows_gradient_and_a_few_tensors_of_the_tokens_width():
    part, peak = run_ranks(_peak_of_embedding, 4)[0]
    assert part < peak <= part + 4 * N * 64 * 8 + 100 * N < WORDS * 64 * 8


def _refusals(rank, group):
    logits, weight, targets = my_part(numbers(0, 3, 5, 11), group), my_part(numbers(1, 11, D), group, 0), every_id()
    wrong = targets.clone()
    wrong[1, 2] = 11
    said = []
    for call in (
        lambda: vocab_cross_entropy(logits, wrong, tp=group, V=11),
        lambda: vocab_cross_entropy(logits, wrong - 2, tp=group, V=11, ignore_index=-2),
        lambda: vocab_embedding(wrong, weight, tp=group, V=11),
        lambda: vocab_embedding(every_id(0), weight, tp=group, V=11),
        lambda: vocab_embedding(targets.double(), weight, tp=group, V=11),
        lambda: vocab_embedding(targets, weight, tp=group, V=20),
        lambda: vocab_embedding(targets, weight, tp=group, V=11, sequence_dim=2),
        lambda: vocab_cross_entropy(logits, targets, tp=group, V=20),
        lambda: vocab_cross_entropy(logits, targets[:2], tp=group, V=11),
        lambda: vocab_cross_entropy(logits, targets, tp=group, V=11, reduction="average"),
        lambda: vocab_cross_entropy(logits, targets, tp=group, V=11, label_smoothing=1.5),
        lambda: vocab_range(1, group),
    ):
        try:
            call()
            said.append("accepted")
        except ValueError as error:
            said.append(str(error))
    return said


SENTENCES = [
    "targets[1, 2] = 11 is not in a vocabulary of V = 11: use 0 to 10, or ignore_index = -100",
    "targets[0, 1] = -1 is not in a vocabulary of V = 11: use 0 to 10, or ignore_index = -2",
    "tokens[1, 2] = 11 is not in a vocabulary of V = 11: use 0 to 10",
    "tokens[0, 0] = -100 is not in a vocabulary of V = 11: use 0 to 10",
    "tokens are torch.float64, but must be whole numbers: one id of 0 to 10 for each token",
    "weight of shape [6, 3]: dim 0 must be the 10 words 0 to 9 that this rank holds of V = 20: "
    "cut it by vocab_range(V, tp)",
    "sequence_dim = 2 is not a dim of tokens of shape [3, 5]: use 0 to 1",
    "logits of shape [3, 5, 6]: dim -1 must be the 10 words 0 to 9 that this rank holds of V = 20: "
    "cut it by vocab_range(V, tp)",
    "targets of shape [2, 5] do not fit logits of shape [3, 5, 6]: one target for each token, [3, 5]",
    "reduction = 'average' is unknown: use one of mean, sum, none",
    "label_smoothing = 1.5 is not a share: use 0 to 1",
    "V = 1 leaves 1 of 2 ranks without a word: give V of 2 or more, or use fewer ranks",
]


def test_bad_input_is_refused_on_every_rank_before_anything_is_sent():
    first, second = run_ranks(_refusals, 2)
    assert first == SENTENCES
    moved = {"[6, 3]": "[5, 3]", "[3, 5, 6]": "[3, 5, 5]", "words 0 to 9": "words 10 to 19"}
    for ours, theirs in moved.items():
        first = [sentence.replace(ours, theirs) for sentence in first]
    assert second == first


def _refused_without_a_call(rank, group):
    logits = my_part(numbers(0, 3, 5, 11), group)

    def refused():
        with pytest.raises(ValueError, match=r"= 11 is not in a vocabulary"):
            vocab_cross_entropy(logits, torch.full((3, 5), 11), tp=group, V=11)

    return logged(refused).num_calls


def test_a_target_out_of_range_costs_no_collective():
    assert run_ranks(_refused_without_a_call, 3) == [0] * 3


def test_one_device_refuses_the_same():
    with pytest.raises(ValueError, match=r"targets\[4\] = 4 is not in a vocabulary of V = 4: use 0 to 3"):
        vocab_cross_entropy(numbers(0, 5, 4), torch.arange(5), tp=None, V=4)
    with pytest.raises(ValueError, match=r"weight of shape \[5, 3\]: dim 0 must be the 4 words 0 to 3"):
        vocab_embedding(torch.arange(4), numbers(0, 5, 3), tp=None, V=4)
