"""Gather + product and product + scatter-sum: every value and gradient is that of one device, in every form."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from linear_cases import TIGHT, draw
from overlap_cases import KERNELS, PLAIN_FORMS, cases, errors, on_ranks
from rig import run_ranks

from tpcourse.overlap import gather_product, product_scatter

ROUND = [{"whole": (2, 12), "is_round": True}, {"whole": (1, 9), "is_round": True}]


def _apart(rank, group):
    """How many cases there are, and which of their tensors are not those of one device."""
    wrong, number = [], 0
    for kind, form, (name, case) in product(KERNELS, PLAIN_FORMS, cases()):
        number += 1
        apart = errors(group, kind, case, form)
        wrong += [f"{kind}, {form}, {name}: {tensor} {error}" for tensor, error in apart.items() if not error < TIGHT]
    return number, wrong


@pytest.mark.parametrize("p", [2, 3, 4])
def test_every_form_gives_the_values_and_all_gradients_of_one_device(p):
    assert run_ranks(_apart, p) == [(54, [])] * p


def _options(rank, group):
    """The same with pieces, with a gather again in backward, and without a gradient of the weight."""
    wrong = []
    for kind, form, pieces in product(KERNELS, PLAIN_FORMS, (1, 3, 4)):
        for _, case in list(cases())[:4]:
            apart = errors(group, kind, case, form, pieces=pieces)
            wrong += [f"{kind}, {form}, {pieces}: {name}" for name, error in apart.items() if not error < TIGHT]
    for form, (_, case) in product(PLAIN_FORMS, list(cases())[:4]):
        apart = errors(group, "gather", case, form, regather=True)
        wrong += [f"regather, {form}: {name}" for name, error in apart.items() if not error < TIGHT]
    return wrong


@pytest.mark.parametrize("p", [2, 4])
def test_the_number_of_pieces_and_a_gather_again_in_backward_change_no_value(p):
    assert run_ranks(_options, p) == [[]] * p


def _equal(rank, group):
    """Whether each form's tensors are those of serial to the last bit, for whole numbers: no sum is rounded."""
    found = []
    for kind, case, form in product(KERNELS, ROUND, PLAIN_FORMS):
        ours, right = on_ranks(group, kind, case, form)
        found.append(all(torch.equal(ours[name], right[name]) for name in right))
    return found


@pytest.mark.parametrize("p", [2, 3, 4])
def test_where_no_sum_is_rounded_every_form_is_one_device_to_the_last_bit(p):
    assert run_ranks(_equal, p) == [[True] * 12] * p


def _frozen(rank, group):
    """The gradients when only some tensors require one: those when all do."""
    found = []
    for kind, form in product(KERNELS, PLAIN_FORMS):
        shapes = ([2, 6 // group.size() * 2, 5], [4, 5], [4])
        make = [draw(seed, *shape) for seed, shape in enumerate(shapes)]
        everything = _gradients(group, kind, form, make, (0, 1, 2))
        for wanted in ((0,), (1,), (2,), (0, 2), (1, 2)):
            got = _gradients(group, kind, form, make, wanted)
            found += [torch.allclose(g, everything[at], rtol=TIGHT, atol=TIGHT) for g, at in zip(got, wanted)]
    return found


def _gradients(group, kind, form, make, wanted):
    mine = [t.clone().requires_grad_(at in wanted) for at, t in enumerate(make)]
    y = KERNELS[kind](*mine, tp=group, form=form)
    return torch.autograd.grad(y, [mine[at] for at in wanted], draw(7, *y.shape))


def test_any_of_x_weight_and_bias_may_be_frozen():
    assert run_ranks(_frozen, 2) == [[True] * 42] * 2


def _twice(rank, group):
    """Gradients of two backwards add up, and a second derivative is refused."""
    found = []
    for kind, form in product(KERNELS, PLAIN_FORMS):
        x, weight = draw(0, 2, 6, 5).requires_grad_(), draw(1, 4, 5).requires_grad_()
        for _ in range(2):
            KERNELS[kind](x, weight, tp=group, form=form).sum().backward()
        twice = [x.grad, weight.grad]
        once = torch.autograd.grad(KERNELS[kind](x, weight, tp=group, form=form).sum(), (x, weight))
        found.append(all(torch.allclose(a, 2 * b, rtol=TIGHT) for a, b in zip(twice, once, strict=True)))
        y = KERNELS[kind](x, weight, tp=group, form=form)
        (dx,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            dx.sum().backward()
    return found


def test_gradients_add_up_over_backwards_and_a_second_derivative_is_refused():
    assert run_ranks(_twice, 2) == [[True] * 6] * 2


def test_without_a_group_it_is_torch_s_own_linear():
    x, weight, bias = draw(0, 2, 9, 5), draw(1, 4, 5), draw(2, 4)
    for kernel in (gather_product, product_scatter):
        assert torch.equal(kernel(x, weight, bias, tp=None), F.linear(x, weight, bias))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"form": "rings"}, ["'rings'", "serial, ring, peer"]), ({"pieces": 0}, ["pieces = 0", "1 to 4"])],
)
@pytest.mark.parametrize("kernel", [gather_product, product_scatter])
def test_an_unknown_form_and_a_wrong_number_of_pieces_are_refused(kernel, options, words):
    with pytest.raises(ValueError, match="use") as error:
        kernel(draw(0, 2, 9, 5), draw(1, 4, 5), tp=None, **options)
    assert [word for word in words if word not in str(error.value)] == []
