"""The one-device truth, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from tpcourse import reference

XS = A, B, C = list(torch.tensor([[1, 2, 3], [10, 20, 30], [-4, 5, 600]], dtype=torch.float64))


def numbers(tensors):
    return [None if x is None else x.tolist() for x in tensors]


def test_reductions():
    assert numbers(reference.all_reduce(XS)) == [[7, 27, 633]] * 3
    assert numbers(reference.all_reduce(XS, "avg")) == [[7 / 3, 9, 211]] * 3
    assert numbers(reference.all_reduce(XS, "max")) == [[10, 20, 600]] * 3
    assert numbers(reference.all_reduce(XS, "min")) == [[-4, 2, 3]] * 3
    assert numbers(reference.all_reduce(XS, "product")) == [[-40, 200, 54000]] * 3
    assert numbers(reference.reduce(XS, root=2)) == [None, None, [7, 27, 633]]


def test_reduce_scatter_gives_each_rank_its_piece_of_the_sum():
    assert numbers(reference.reduce_scatter(XS)) == [[7], [27], [633]]
    assert numbers(reference.reduce_scatter(XS, sizes=[0, 2, 1])) == [[], [7, 27], [633]]
    assert numbers(reference.reduce_scatter([A, B])) == [[11, 22], [33]], "the longer piece comes first"


def test_gathers_join_in_rank_order():
    shards = [A, B[:1], C[:0]]
    assert numbers(reference.all_gather(shards)) == [[1, 2, 3, 10]] * 3
    assert numbers(reference.gather(shards, root=1)) == [None, [1, 2, 3, 10], None]
    assert numbers(reference.all_gather([A[:, None], B[:, None]], dim=1)) == [[[1, 10], [2, 20], [3, 30]]] * 2


def test_broadcast_and_scatter_take_the_root_s():
    assert numbers(reference.broadcast(XS, root=1)) == [[10, 20, 30]] * 3
    assert numbers(reference.scatter(XS, root=1)) == [[10], [20], [30]]
    assert numbers(reference.scatter(XS, root=2, sizes=[2, 0, 1])) == [[-4, 5], [], [600]]


def test_all_to_all_transposes_the_table_of_pieces():
    assert numbers(reference.all_to_all(XS)) == [[1, 10, -4], [2, 20, 5], [3, 30, 600]]
    table = [[0, 1, 2], [3, 0, 0], [1, 1, 1]]
    assert numbers(reference.all_to_all(XS, table)) == [[10, 20, 30, -4], [1, 5], [2, 3, 600]]


def test_outputs_share_no_memory_with_inputs_or_each_other():
    for call in (
        reference.all_reduce,
        reference.all_gather,
        reference.broadcast,
        reference.scatter,
        reference.all_to_all,
    ):
        results = call([A])
        results += call([A, A, A])
        pointers = [x.untyped_storage().data_ptr() for x in results]
        assert len({*pointers, A.untyped_storage().data_ptr()}) == len(results) + 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reference.broadcast(XS, root=3), "root = 3 is not one of 3 ranks: use 0 to 2"),
        (lambda: reference.reduce(XS, root=-1), "root = -1 is not one of 3 ranks"),
        (lambda: reference.all_reduce(XS, "mean"), "op = 'mean' is unknown: use one of sum, avg"),
        (lambda: reference.all_reduce([A, B[:2]]), r"rank 0 \[3\] torch.float64, rank 1 \[2\] torch.float64"),
        (lambda: reference.all_reduce([A, B.float()]), "rank 1 .* torch.float32"),
        (lambda: reference.all_reduce([]), "found no rank"),
        (lambda: reference.scatter(XS, sizes=[1, 1]), r"sizes = \[1, 1\] must be 3 numbers that sum to 3"),
        (lambda: reference.all_to_all(XS, [[1, 2, 0]]), "3 ranks need 3 rows of 3 send sizes each"),
    ],
)
def test_bad_input_is_named_with_its_numbers(call, message):
    with pytest.raises(ValueError, match=message):
        call()
