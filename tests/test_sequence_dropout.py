"""Dropout: which masks agree, that nothing but one byte an element is kept, and that recomputing draws it again."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from rig import run_ranks
from torch.utils.checkpoint import checkpoint

from tpcourse import memory
from tpcourse.sequence import Seeds, dropout, enter

RATE, SHAPE = 0.3, (2, 8, 50)


def mask_of(generator: torch.Generator, rate: float = RATE, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return dropout(torch.ones(shape), rate, generator) != 0


def _masks(rank, group):
    """One of each kind, for two sites and two steps."""
    seeds = Seeds(7, tp=group)
    places = [(site, step) for site in ("attention", "mlp") for step in (0, 1)]
    return [mask_of(draw(*place)).tolist() for draw in (seeds.shared, seeds.own) for place in places]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_shared_masks_are_equal_on_all_ranks_and_own_ones_differ_and_each_site_and_step_has_its_own(p):
    found = run_ranks(_masks, p)
    shared, own = [masks[:4] for masks in found], [masks[4:] for masks in found]
    assert all(masks == shared[0] for masks in shared)
    different = [*shared[0], *(mask for masks in own for mask in masks)]
    assert all(a != b for i, a in enumerate(different) for b in different[:i])


def _pieces(rank, group, kind):
    """The mask of this rank's tokens under sequence parallelism, 7 tokens on p ranks."""
    piece = enter(torch.ones(2, 7, 50), tp=group)
    return (dropout(piece, RATE, getattr(Seeds(7, tp=group), kind)("mlp", 0)) != 0).tolist()


def agreement(first, second) -> float:
    """The share of elements of two ranks' first token that are both kept or both dropped."""
    first, second = (torch.tensor(piece)[:, :1] for piece in (first, second))
    return (first == second).float().mean().item()


@pytest.mark.parametrize("p", [2, 4])
def test_own_masks_of_pieces_are_as_unlike_as_chance_has_it(p):
    by_chance = RATE**2 + (1 - RATE) ** 2
    pieces = run_ranks(_pieces, p, "own")
    for i in range(p):
        for j in range(i):
            assert agreement(pieces[i], pieces[j]) == pytest.approx(by_chance, abs=0.2)


def test_shared_masks_would_drop_the_same_places_of_every_piece():
    """Equal pieces: with 7 tokens on 4 ranks all but the last have two."""
    first, second, third, _ = run_ranks(_pieces, 4, "shared")
    assert first == second == third


def test_a_seed_is_the_same_number_in_every_process_and_version():
    """`hash` of a name, for one, is another number in each process that Python starts."""
    seeds = Seeds(1, tp=None)
    assert seeds.shared("attention", 2).initial_seed() == 0xC7268E8CAF9AD2CA
    assert seeds.own("attention", 2).initial_seed() == 0x667B326E93A831E9


def test_what_stands_in_two_places_does_not_meet():
    """No two different (seed, site, step, rank) give one number: also those that read alike when joined."""
    places = [("1", 2), (1, 2), (12, 3), (1, 23), ("1, 2", 3), ("a", -1), ("a", 1)]
    found = [draw(*place).initial_seed() for s in (0, 1) for place in places
             for draw in (Seeds(s, tp=None).shared, Seeds(s, tp=None).own)]  # fmt: skip
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_mask_of_one_byte_an_element_is_kept_and_nothing_else(dtype):
    x = torch.randn(SHAPE, dtype=dtype, requires_grad=True)
    kept = memory.saved(lambda: dropout(x, RATE, Seeds(0, tp=None).own("mlp", 0)))
    assert [(k.bytes, k.dtype) for k in kept.kept] == [(x.numel(), "bool")]


def test_a_mask_of_x_s_dtype_keeps_as_much_as_x():
    x = torch.randn(SHAPE, requires_grad=True)
    assert memory.saved(lambda: torch.nn.functional.dropout(x, RATE)).bytes == 4 * x.numel()


def masked(x: torch.Tensor, make_generator) -> torch.Tensor:
    return dropout(x.sin(), RATE, make_generator()) * x


def test_what_is_run_again_in_backward_draws_the_same_mask_and_nothing_is_kept_for_it():
    x = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    fresh = partial(Seeds(0, tp=None).own, "mlp", 3)
    again = lambda x: checkpoint(masked, x, fresh, use_reentrant=False, preserve_rng_state=False)  # noqa: E731
    results = [(y.detach(), *torch.autograd.grad(y.sum(), x)) for y in (masked(x, fresh), again(x))]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert memory.saved(again, x).bytes == x.nbytes


def test_a_generator_from_outside_has_moved_on_when_it_is_asked_again():
    """The companion: y is right, and its gradient belongs to another mask."""
    x = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    seeds = Seeds(0, tp=None)
    right = masked(x, partial(seeds.own, "mlp", 3))
    old = seeds.own("mlp", 3)
    y = checkpoint(masked, x, lambda: old, use_reentrant=False, preserve_rng_state=False)
    assert torch.equal(y, right)
    assert not torch.equal(*(torch.autograd.grad(value.sum(), x)[0] for value in (y, right)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_right_share_is_dropped_and_what_stays_is_scaled_as_is_its_gradient(rate):
    x = torch.randn(400, 500, dtype=torch.float64, requires_grad=True)
    y = dropout(x, rate, Seeds(0, tp=None).shared("mlp", 0))
    kept = y != 0
    sigma = (rate * (1 - rate) / x.numel()) ** 0.5
    assert kept.double().mean().item() == pytest.approx(1 - rate, abs=5 * sigma)
    assert torch.allclose(y[kept], x[kept] / (1 - rate), rtol=1e-15)
    (dx,) = torch.autograd.grad(y, x, dy := torch.randn_like(x))
    assert torch.allclose(dx, dy * kept / (1 - rate), rtol=1e-15)


def test_the_gradient_is_that_of_finite_differences_and_can_be_differentiated_again():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    fn = lambda x: dropout(x.exp(), RATE, Seeds(0, tp=None).own("mlp", 0))  # noqa: E731
    assert torch.autograd.gradcheck(fn, x) and torch.autograd.gradgradcheck(fn, x)


def test_a_mask_follows_from_the_shape_and_not_from_the_dtype_or_where_elements_lie():
    """A replicated tensor may lie transposed on one rank, and be bfloat16 in one step."""
    fresh = partial(Seeds(0, tp=None).shared, "mlp", 0)
    lying = torch.ones(SHAPE[::-1]).permute(2, 1, 0)
    expected = mask_of(fresh())
    assert torch.equal(dropout(lying, RATE, fresh()) != 0, expected)
    assert torch.equal(dropout(torch.ones(SHAPE, dtype=torch.bfloat16), RATE, fresh()) != 0, expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_mask_does_not_depend_on_the_number_of_threads(threads):
    before = torch.get_num_threads()
    large = (200, 1000)
    expected = mask_of(Seeds(0, tp=None).shared("mlp", 0), shape=large)
    try:
        torch.set_num_threads(threads)
        assert torch.equal(mask_of(Seeds(0, tp=None).shared("mlp", 0), shape=large), expected)
    finally:
        torch.set_num_threads(before)


def test_at_rate_0_and_in_evaluation_x_comes_back_itself_and_torch_s_own_generator_is_never_touched():
    x, generator = torch.randn(3, requires_grad=True), Seeds(0, tp=None).own("mlp", 0)
    state = torch.get_rng_state()
    assert dropout(x, 0.0, generator) is x and dropout(x, 0.9, generator, training=False) is x
    dropout(x, 0.9, generator)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
@pytest.mark.parametrize("training", [True, False])
def test_a_rate_that_is_no_share_is_refused(rate, training):
    with pytest.raises(ValueError, match=f"rate = {rate} .* use 0 to below 1"):
        dropout(torch.ones(3), rate, torch.Generator(), training)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Seeds(1.5, tp=None), "seed must be a whole number, not 1.5"),
        (lambda: Seeds(0, tp=None).own("mlp", torch.tensor(3)), r"step must be a whole number, not tensor\(3\)"),
        (lambda: Seeds(0, tp=None).shared(None, 3), "a site without a name must be a whole number, not None"),
        (lambda: dropout(torch.ones(3, device="meta"), RATE, torch.Generator()), "generator is on cpu and x on meta"),
    ],
)
def test_what_ranks_could_not_agree_on_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
