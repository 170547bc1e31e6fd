"""How a length is cut, and what a user reads where it cannot be."""

from __future__ import annotations

import pytest
import torch

from tpcourse.dims import AXES, LETTERS, require_divisible, split_range, split_sizes


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("n", [0, 1, 2, 5, 12, 13])
def test_pieces_fill_the_length_in_order_and_differ_by_at_most_one(n, p):
    sizes = split_sizes(n, p)
    assert len(sizes) == p
    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert [split_range(n, p, r) for r in range(p)] == [(sum(sizes[:r]), sum(sizes[: r + 1])) for r in range(p)]


def test_pieces_are_those_of_tensor_split_and_not_of_chunk():
    assert split_sizes(10, 4) == [len(piece) for piece in torch.arange(10).tensor_split(4)] == [3, 3, 2, 2]
    assert [len(piece) for piece in torch.arange(10).chunk(4)] == [3, 3, 3, 1]


def test_divisible_lengths_give_the_size_of_a_piece():
    assert require_divisible(12, 4, "F") == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: require_divisible(10, 4, "H"),
            r"H = 10 does not divide by 4 ranks \(10 = 2 x 4 \+ 2\): use H = 8 or 12",
        ),
        (lambda: require_divisible(3, 4, "H"), r"use H = 4, or a number of ranks that divides 3"),
        (lambda: require_divisible(-4, 4, "H"), r"H must be at least 0, not -4"),
        (lambda: split_sizes(-1, 4), r"a length must be at least 0, not -1"),
        (lambda: split_sizes(4, 0), r"the number of pieces must be at least 1, not 0"),
        (lambda: split_sizes(4.0, 2), r"a length must be a whole number, not 4.0"),
        (lambda: split_range(4, 2, 2), r"rank 2 is not one of 2 ranks: use 0 to 1"),
        (lambda: split_range(4, 2, -1), r"a rank must be at least 0, not -1"),
        (lambda: split_range(4, 2, True), r"a rank must be a whole number, not True"),
    ],
)
def test_bad_input_is_named_with_its_numbers_and_the_fix(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_legend_has_every_letter_of_the_course_once():
    assert list(LETTERS)[:12] == ["B", "T", "D", "F", "H", "K", "V", "L", "M", "E", "p", "r"]
    assert set(AXES) == {"dp", "pp", "cp", "tp", "ep"}
    assert all(LETTERS.values())
