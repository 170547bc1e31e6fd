"""The form `peer` with its memory and signals on the CPU: every value and gradient, and the wrong signals noticed."""

from __future__ import annotations

import random
from itertools import product
from unittest import mock

import pytest
import torch
from linear_cases import TIGHT, draw
from overlap_cases import KERNELS, cases, errors
from rig import run_ranks
from shared_area import SharedSlot, shared_areas
from torch.utils._python_dispatch import TorchDispatchMode

from tpcourse.overlap import area, gather_product, peer, product_scatter


def _apart(rank, group, folder):
    """Which tensors of which case are not those of one device, with each number of pieces."""
    wrong = []
    with shared_areas(folder, group):
        for kind, (name, case), pieces in product(KERNELS, cases(), (None, 1, 3)):
            apart = errors(group, kind, case, "peer", pieces=pieces)
            wrong += [f"{kind}, {name}, {pieces}: {tensor}" for tensor, error in apart.items() if not error < TIGHT]
        for _, case in list(cases())[:4]:
            apart = errors(group, "gather", case, "peer", regather=True)
            wrong += [f"regather: {tensor}" for tensor, error in apart.items() if not error < TIGHT]
    return wrong


@pytest.mark.parametrize("p", [2, 3, 4])
def test_peer_gives_the_values_and_all_gradients_of_one_device(p, tmp_path):
    assert run_ranks(_apart, p, str(tmp_path)) == [[]] * p


def _in_a_row(rank, group, folder, num_slots, num_calls):
    """Random shapes, one call after the other, twice: how many tensors are not serial's, and how many not the same."""
    far, both = 0, []
    with mock.patch.object(area, "SLOTS", num_slots), shared_areas(folder, group):
        for seed in (5, 5):
            drawn, values = random.Random(seed), []
            for number in range(num_calls):
                kind, options, tensors = _drawn(drawn, number, rank, group.size())
                values += _values(group, kind, "peer", tensors, options)
                pairs = zip(values[-3:], _values(group, kind, "serial", tensors, options), strict=True)
                far += sum(not torch.allclose(ours, right, rtol=TIGHT, atol=TIGHT) for ours, right in pairs)
            both.append(values)
    return far, sum(not torch.equal(a, b) for a, b in zip(*both, strict=True))


def _drawn(shapes: random.Random, seed: int, rank: int, p: int):
    """A kind, its options, and this rank's x, weight and dy, of sizes that are drawn."""
    kind, pieces, regather = shapes.choice(["gather", "scatter"]), shapes.choice([None, 1, 2, 4]), shapes.random() < 0.5
    b, tokens, into, out = (shapes.randint(1, most) for most in (3, 40, 20, 20))
    whole, weight = draw(seed, b, tokens, into), draw(seed + 1, out, into)
    dy = draw(seed + 2 + rank, b, tokens, out)
    if kind == "gather":
        options = {"num_tokens": tokens, "pieces": pieces, "regather": regather}
        return kind, options, (whole.tensor_split(p, 1)[rank], weight, dy)
    return kind, {"pieces": pieces}, (whole, weight, dy.tensor_split(p, 1)[rank])


def _values(group, kind, form, tensors, options) -> list[torch.Tensor]:
    x, weight, dy = (t.clone().requires_grad_() for t in tensors)
    y = KERNELS[kind](x, weight, tp=group, form=form, **options)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), dy)]


@pytest.mark.parametrize(("p", "num_slots", "num_calls"), [(2, 2, 100), (4, 2, 20), (3, 1, 20)])
def test_calls_of_random_shapes_in_a_row_never_read_what_is_not_there_yet_or_no_more(p, num_slots, num_calls, tmp_path):
    """One slot is what a captured graph with one call has, replay after replay. What was read is poisoned."""
    assert run_ranks(_in_a_row, p, str(tmp_path), num_slots, num_calls) == [(0, 0)] * p


def test_a_rank_that_does_not_wait_for_the_signal_multiplies_what_has_not_come(tmp_path):
    assert run_ranks(_too_early, 2, str(tmp_path)) == [True, False]


def _too_early(rank, group, folder):
    """Rank 0 writes only when rank 1, which does not wait, is done: whether y is right."""
    x, weight = draw(0, 1, 8, 5), draw(1, 4, 5)
    wait_free, free = SharedSlot.wait_free, SharedSlot.free

    def late(slot, of):
        torch.distributed.barrier(group)
        wait_free(slot, of)

    patches = {"wait_free": late} if rank == 0 else {"wait": _nothing, "free": _nothing}
    with shared_areas(folder, group):
        with mock.patch.multiple(SharedSlot, **patches):
            y = gather_product(x, weight, tp=group, form="peer")
        if rank == 1:
            torch.distributed.barrier(group)
    assert (SharedSlot.wait_free, SharedSlot.free) == (wait_free, free)
    return torch.allclose(y, gather_product(x, weight, tp=group, form="serial"))


def test_a_rank_that_does_not_wait_until_a_slot_is_free_overwrites_what_is_still_read(tmp_path):
    assert run_ranks(_overwritten, 2, str(tmp_path)) == [True, False]


def _overwritten(rank, group, folder):
    """With one slot, rank 0 writes its second tokens before rank 1 has read the first: whether the first y is right."""
    x, weight, wait, put = draw(0, 1, 8, 5), draw(1, 4, 5), SharedSlot.wait, SharedSlot.put

    def put_all(slot, of, number):
        put(slot, of, number)
        if slot.area.turn == 2:
            torch.distributed.barrier(group)

    def wait_longer(slot, of, number):
        wait(slot, of, number)
        if slot.area.turn == 1:
            torch.distributed.barrier(group)

    patches = {"wait_free": _nothing, "put": put_all} if rank == 0 else {"wait": wait_longer, "free": _nothing}
    patches = {"wait_free": _nothing, "free": _nothing, **patches}
    with mock.patch.object(area, "SLOTS", 1), shared_areas(folder, group), mock.patch.multiple(SharedSlot, **patches):
        y = gather_product(x, weight, tp=group, form="peer")
        gather_product(-x, weight, tp=group, form="peer")
    return torch.allclose(y, gather_product(x, weight, tp=group, form="serial"))


def _nothing(*args):
    """A wait or a signal left out."""


def test_peer_is_refused_where_there_is_no_gpu():
    assert run_ranks(_refused, 2) == [[True, True]] * 2


def _refused(rank, group):
    found = []
    for kernel in (gather_product, product_scatter):
        with pytest.raises(ValueError, match="use 'ring'") as error:
            kernel(draw(0, 1, 8, 5), draw(1, 4, 5), tp=group, form="peer")
        found.append("x is on cpu" in str(error.value))
    return found


def _same_to_the_bit(rank, group, folder):
    """Which gradients in bfloat16 are serial's, bit by bit: of how many."""
    found = []
    with shared_areas(folder, group):
        for seed in range(12):
            kind, options, tensors = _drawn(random.Random(seed), seed, rank, group.size())
            narrow = [t.bfloat16() for t in tensors]
            peer, serial = (_values(group, kind, form, narrow, options)[2] for form in ("peer", "serial"))
            found.append(torch.equal(peer, serial))
    return found


@pytest.mark.parametrize("p", [2, 4])
def test_the_gradient_of_a_weight_is_one_product_over_all_tokens_and_so_serial_s_to_the_bit(p, tmp_path):
    assert run_ranks(_same_to_the_bit, p, str(tmp_path)) == [[True] * 12] * p


class Counted(TorchDispatchMode):
    """How many products run."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func.overloadpacket.__name__ in ("mm", "addmm", "addmm_", "bmm", "baddbmm_")
        return func(*args, **kwargs or {})


def _backward_products(rank, group, folder):
    """Kind and what needs a gradient -> products of a backward, and copies of this rank's own tokens."""
    found, put_own = {}, peer._Arriving.put_own
    with shared_areas(folder, group):
        for kind, needed in product(KERNELS, ("both", "x", "weight")):
            x = draw(0, 1, 4 if kind == "gather" else 8, 6).requires_grad_(needed != "weight")
            y = KERNELS[kind](x, draw(1, 5, 6).requires_grad_(needed != "x"), tp=group, form="peer")
            own = []
            noted = mock.patch.object(peer._Arriving, "put_own", lambda call: own.append(put_own(call)))  # noqa: B023
            with noted, Counted() as counted:
                y.sum().backward()
            found[kind, needed] = counted.products, len(own)
    return found


def test_a_backward_has_no_product_more_than_it_needs_and_no_copy_where_nothing_is_summed(tmp_path):
    """At two ranks dx has two products, and four where its sum leaves in two pieces. dW is one behind those of dx, and
    one for each rank's tokens without them.
    """
    right = {("gather", "x"): (4, 0), ("scatter", "x"): (2, 0)}
    right |= {(kind, needed): found for kind in KERNELS for needed, found in (("both", (3, 1)), ("weight", (2, 0)))}
    assert run_ranks(_backward_products, 2, str(tmp_path)) == [right] * 2
