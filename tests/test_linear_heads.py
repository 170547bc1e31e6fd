"""Attention by heads: grouped queries with as many K/V heads as query heads, fewer, and fewer than ranks."""

from __future__ import annotations

import pytest
import torch
from ledger_help import fresh_ledger
from linear_cases import TIGHT, draw, gradients, shard
from rig import run_ranks
from torch import Tensor

from tpcourse.ledger import ledger
from tpcourse.linear import Heads, qkv_linear, row_linear, sum_shared_heads

B, T, D, H, K, OUT = 2, 9, 5, 12, 3, 7
NAMES = ("y", "dx", "dweight", "dbias", "dout")
KV_HEADS = {2: (12, 4, 1), 3: (12, 3, 1), 4: (12, 4, 2, 1)}
"""As many as heads, fewer, and fewer than ranks, by the number of ranks."""


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, grouped: q [B, T, h, K], k and v [B, T, kv, K] -> [B, T, h K].

    Keys are scaled by their place, or else softmax would cancel their bias, whose gradient would be 0.
    """
    k = k * torch.linspace(0.5, 1.5, k.shape[1], dtype=k.dtype).view(-1, 1, 1)
    k, v = (part.repeat_interleave(q.shape[2] // k.shape[2], 2) for part in (k, v))
    scores = torch.einsum("bthk,bshk->bhts", q, k) / K**0.5
    mask = torch.full((q.shape[1], q.shape[1]), float("-inf"), dtype=q.dtype).triu(1)
    return torch.einsum("bhts,bshk->bthk", (scores + mask).softmax(-1), v).flatten(2)


def fused(kv: int, heads: range, kv_heads: range) -> tuple[Tensor, Tensor]:
    """Weight and bias of the fused product for some heads of the model: rows of q, k and v."""
    found = []
    for seed, more in ((1, (D,)), (2, ())):
        q, k, v = (draw(seed + 10 * part, n, K, *more) for part, n in enumerate((H, kv, kv)))
        parts = [q[heads.start : heads.stop], k[kv_heads.start : kv_heads.stop], v[kv_heads.start : kv_heads.stop]]
        found.append(torch.cat(parts).flatten(0, 1))
    return tuple(found)


def on_one_device(kv: int) -> list[Tensor]:
    """The tensors of NAMES."""
    tensors = [t.requires_grad_() for t in (draw(0, B, T, D), *fused(kv, range(H), range(kv)), draw(3, OUT, H * K))]
    heads = Heads(H, kv, None)
    y = attention(*qkv_linear(*tensors[:3], tp=None, heads=heads, head_width=K)) @ tensors[3].T
    return [y.detach(), *gradients(y, tensors)]


def on_ranks(group, kv: int, sequence_dim: int | None, sums: bool = True) -> list[Tensor]:
    """The same for this rank's heads, with the gradients of shared K/V heads summed."""
    heads = Heads(H, kv, group)
    pieces = [shard(group, draw(0, B, T, D), sequence_dim), *fused(kv, heads.heads, heads.kv_heads)]
    tensors = [t.clone().requires_grad_() for t in (*pieces, shard(group, draw(3, OUT, H * K), 1))]
    more = {} if sequence_dim is None else {"sequence_dim": 1, "num_tokens": T, "regather": True}
    q, k, v = qkv_linear(*tensors[:3], tp=group, heads=heads, head_width=K, **more)
    y = row_linear(attention(q, k, v), tensors[3], tp=group, sequence_dim=sequence_dim)
    found = gradients(y, tensors, shard(group, draw(9, B, T, OUT), sequence_dim))
    if sums:
        sum_shared_heads(found[1:3], tp=group, heads=heads, head_width=K)
    return [y.detach(), *found]


def _parts(gradient: Tensor, heads: Heads) -> dict[str, Tensor]:
    return dict(zip("qkv", gradient.split(heads.row_sizes(K)), strict=True))


def _mine(whole: Tensor, heads: Heads, kv: int) -> dict[str, Tensor]:
    """This rank's rows of the one-device gradient."""
    parts = _parts(whole, Heads(H, kv, None))
    ranges = {"q": heads.heads, "k": heads.kv_heads, "v": heads.kv_heads}
    return {name: part[ranges[name].start * K : ranges[name].stop * K] for name, part in parts.items()}


def _wrong(rank, group, sums=True):
    """Case and tensor for all that differs from one device."""
    wrong = []
    for kv in KV_HEADS[group.size()]:
        heads, (y, dx, dweight, dbias, dout) = Heads(H, kv, group), on_one_device(kv)
        for sequence_dim in (None, 1):
            found = dict(zip(NAMES, on_ranks(group, kv, sequence_dim, sums), strict=True))
            expected = {"y": shard(group, y, sequence_dim), "dx": shard(group, dx, sequence_dim)}
            expected["dout"] = shard(group, dout, 1)
            for name, whole in (("dweight", dweight), ("dbias", dbias)):
                expected |= {f"{name} {part}": t for part, t in _mine(whole, heads, kv).items()}
                found |= {f"{name} {part}": t for part, t in _parts(found[name], heads).items()}
            for name, truth in expected.items():
                if not float((found[name] - truth).abs().max() / truth.abs().max()) < TIGHT:
                    wrong.append((kv, name))
    return wrong


@pytest.mark.parametrize("p", [2, 3, 4])
def test_attention_split_by_heads_is_the_one_device_attention_with_all_gradients(p):
    assert run_ranks(_wrong, p) == [[]] * p


@pytest.mark.parametrize("p", [2, 3, 4])
def test_without_their_sum_the_gradients_of_shared_kv_heads_are_short_and_nothing_else_is(p):
    shared = [kv for kv in KV_HEADS[p] if kv < p]
    names = ("dweight k", "dweight v", "dbias k", "dbias v")
    for wrong in run_ranks(_wrong, p, False):
        assert set(wrong) == {(kv, name) for kv in shared for name in names}


def _traffic(rank, group, kv, dtypes):
    """Calls and bytes of the sum over two layers' weights and biases, or more dtypes of them."""
    heads = Heads(H, kv, group)
    layers = [[t.to(dtype) for t in fused(kv, heads.heads, heads.kv_heads)] for dtype in dtypes]
    before = [t[: len(heads.heads) * K].clone() for layer in layers for t in layer]
    with fresh_ledger(), ledger() as log:
        sum_shared_heads([None, *(t for layer in layers for t in layer)], tp=group, heads=heads, head_width=K)
    after = [t[: len(heads.heads) * K] for layer in layers for t in layer]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "the queries' rows stay"
    return log.num_calls, log.count("all_reduce"), log.bytes_sent


def test_shared_heads_of_all_layers_are_summed_in_one_call_for_each_dtype_and_only_if_there_are_any():
    float64, float32, p = torch.float64, torch.float32, 4
    for kv in (2, 1):
        layer = kv * 2 * K * (D + 1)  # elements of the K and V rows of weight and bias
        assert run_ranks(_traffic, p, kv, (float64, float64)) == [(1, 1, 2 * (p - 1) * 2 * layer * 8 // p)] * p
        assert run_ranks(_traffic, p, kv, (float64, float32)) == [(2, 2, 2 * (p - 1) * layer * 12 // p)] * p
    for kv in (4, 12):
        assert run_ranks(_traffic, p, kv, (float64, float64)) == [(0, 0, 0)] * p


def _one_product(rank, group):
    heads = Heads(H, 2, group)
    x = draw(0, B, T, D).requires_grad_()
    with fresh_ledger(), ledger() as log:
        q, k, v = qkv_linear(x, *fused(2, heads.heads, heads.kv_heads), tp=group, heads=heads, head_width=K)
        (q.sum() + k.sum() + v.sum()).backward()
    return q.shape, k.shape, v.shape, q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr(), log.num_calls


def test_queries_keys_and_values_come_from_one_product_with_one_call_in_backward():
    kv = (B, T, 1, K)
    assert run_ranks(_one_product, 4) == [((B, T, H // 4, K), kv, kv, True, 1)] * 4


def _held(rank, group, num_heads, kv):
    heads = Heads(num_heads, kv, group)
    return [*heads.heads], [*heads.kv_heads], heads.copies, heads.num_rows(K)


def test_each_rank_holds_the_kv_heads_that_its_queries_need():
    assert run_ranks(_held, 4, 8, 8) == [([2 * r, 2 * r + 1], [2 * r, 2 * r + 1], 1, 18) for r in range(4)]
    assert run_ranks(_held, 4, 8, 2) == [([2 * r, 2 * r + 1], [r // 2], 2, 12) for r in range(4)]
    assert run_ranks(_held, 4, 4, 1) == [([r], [0], 4, 9) for r in range(4)]
    for r, (heads, kv, *_) in enumerate(run_ranks(_held, 3, 12, 6)):
        assert kv == [2 * r, 2 * r + 1] == sorted({head // 2 for head in heads})


def _refused(rank, group):
    said = []
    for sizes in ((6, 3), (8, 3), (12, 6), (0, 1), (8, 0)):
        with pytest.raises(ValueError) as error:  # noqa: PT011 (the texts are compared)
            Heads(*sizes, group)
        said.append(str(error.value))
    heads, x = Heads(8, 2, group), torch.ones(2, D)
    for call in (
        lambda: qkv_linear(x, torch.ones(24, D), None, tp=group, heads=heads, head_width=K),
        lambda: sum_shared_heads([torch.ones(24)], tp=group, heads=heads, head_width=K),
        lambda: sum_shared_heads([torch.ones(12, requires_grad=True)], tp=group, heads=heads, head_width=K),
    ):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            call()
        said.append(str(error.value))
    return said


def test_heads_that_cannot_be_split_and_weights_that_do_not_fit_them_are_refused_with_the_numbers():
    words = [
        ["num_heads = 6", "4 ranks", "4 or 8"],
        ["num_kv_heads = 3", "num_heads = 8", "1, 2, 4, 8"],
        ["num_kv_heads = 6 on 4 ranks", "1, 2, 4, 12"],
        ["num_heads = 0", "at least 1"],
        ["num_kv_heads = 0", "at least 1"],
        ["[24, 5]", "2 heads", "2 x 1 K/V heads of width 3", "12 rows"],
        ["[24]", "12 rows"],
        ["requires a gradient", "weight.grad"],
    ]
    for said in run_ranks(_refused, 4):
        assert len(said) == len(words)
        assert [(text, w) for text, expected in zip(said, words, strict=True) for w in expected if w not in text] == []


def test_heads_say_what_they_are():
    assert repr(Heads(8, 2, None)) == "Heads: 0 to 7 of 8, K/V 0 to 1 of 2"
