"""How gradients are cut into buckets: data only, no ranks."""

from __future__ import annotations

import pytest
import torch

from tpcourse.data import num_buckets, plan_buckets

F32, BF16 = torch.float32, torch.bfloat16


def weights(*sizes, dtype=F32):
    return [torch.empty(size, dtype=dtype, device="meta") for size in sizes]


def cuts(buckets):
    return [(bucket.start, bucket.end, bucket.members) for bucket in buckets]


def test_the_last_weight_comes_first_and_a_cut_goes_through_a_weight_if_need_be():
    found = plan_buckets(weights(5, 4, 3), bucket_bytes=16, first_bytes=8)
    assert cuts(found) == [(0, 2, (2,)), (2, 6, (2, 1)), (6, 10, (1, 0)), (10, 12, (0,))]
    assert [bucket.num_bytes for bucket in found] == [8, 16, 16, 8]


@pytest.mark.parametrize("sizes", [(1,), (7,), (5, 4, 3), (1, 100, 1), (12, 0, 12)])
@pytest.mark.parametrize(("bucket", "first"), [(4, 4), (16, 16), (16, 4), (40, 8), (10**9, 10**9), (10**9, 4)])
def test_as_many_buckets_as_the_formula_says_and_every_element_in_one_of_them(sizes, bucket, first):
    found = plan_buckets(weights(*sizes), bucket, first)
    num_bytes = 4 * sum(sizes)
    assert len(found) == num_buckets(num_bytes, bucket, first)
    assert [b.start for b in found] == [0, *(b.end for b in found[:-1])] and found[-1].end == sum(sizes)
    assert all(b.num_bytes <= (bucket if number else first) for number, b in enumerate(found))
    assert {index for b in found for index in b.members} == {index for index, size in enumerate(sizes) if size}


def test_the_formula_counts_the_small_first_bucket_and_is_a_plain_ceil_without_it():
    assert [num_buckets(n, 25) for n in (0, 1, 25, 26, 100)] == [0, 1, 1, 2, 4]
    assert [num_buckets(n, 25, 1) for n in (0, 1, 2, 26, 27, 101)] == [0, 1, 2, 2, 3, 5]


def test_each_dtype_has_its_own_buckets_and_only_the_first_of_all_is_small():
    mixed = [*weights(4), *weights(8, dtype=BF16), *weights(6), *weights(2, dtype=BF16)]
    found = plan_buckets(mixed, bucket_bytes=16, first_bytes=4)
    assert [(b.dtype, b.start, b.end, b.members) for b in found] == [
        (BF16, 0, 2, (3,)),
        (F32, 0, 4, (2,)),
        (BF16, 2, 10, (1,)),
        (F32, 4, 8, (2, 0)),
        (F32, 8, 10, (0,)),
    ]


def test_a_bucket_leaves_after_those_that_backward_fills_before_it():
    mixed = [*weights(1), *weights(1, dtype=BF16), *weights(1), *weights(1, dtype=BF16), *weights(1)]
    found = plan_buckets(mixed, bucket_bytes=8, first_bytes=8)
    last = [min(b.members) for b in found]
    assert last == sorted(last, reverse=True)


def test_flags_travel_at_the_end_of_the_array_that_ends_last():
    found = plan_buckets([*weights(3), *weights(2, dtype=BF16)], 8, 8, num_flags=2)
    assert [(b.dtype, b.start, b.end, b.members) for b in found] == [
        (BF16, 0, 2, (1,)),
        (F32, 0, 2, (0,)),
        (F32, 2, 4, (0,)),
        (F32, 4, 5, ()),
    ]


def test_the_plan_depends_on_sizes_and_order_alone():
    assert plan_buckets(weights(5, 4, 3), 16, 8) == plan_buckets(weights(5, 4, 3), 16, 8)
    assert plan_buckets(weights(5, 4, 3), 16, 8) != plan_buckets(weights(1, 8, 3), 16, 8)
