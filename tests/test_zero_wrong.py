"""ZeRO with one mistake: the tests of values, traffic and bytes notice each; and what is refused with words."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ledger_help import fresh_ledger
from rig import run_ranks
from test_zero import _train, finished, wrong
from test_zero_held import _held_at_the_end, _peak, _step_peaks, within
from torch import nn
from zero_cases import advance, make, new_model

from tpcourse.ledger import ledger
from tpcourse.zero import Zero1, Zero2, Zero3
from tpcourse.zero.flat import Flat


class AllReduceKept(Zero2):
    """Averages whole gradients, and then takes its own piece of them."""

    def _leave(self, flat):
        array = flat.joined([weight.grad for weight in flat.weights])
        for weight in flat.weights:
            weight.grad = None
        dist.all_reduce(array, group=self.dp)
        flat.add(array[flat.start : flat.start + flat.n].clone() / dist.get_world_size(self.dp))


class FullGradientKept(Zero2):
    """Adds up pieces, and leaves the whole gradient where it was."""

    def _leave(self, flat):
        kept = [weight.grad for weight in flat.weights]
        super()._leave(flat)
        self.kept = [*getattr(self, "kept", []), *kept]
        for weight, gradient in zip(flat.weights, kept, strict=True):
            weight.grad = gradient

    def reduce(self):
        for flat in self.flats:
            for weight in flat.weights:
                weight.grad = None
        super().reduce()


class PaddingInTheNorm(Zero1):
    """Fills arrays up with whatever is there."""

    def _leave(self, flat):
        super()._leave(flat)
        flat, array, gradient, work = self._under_way
        work.wait()
        end = flat.start + flat.n - sum(flat.sizes)
        if end > 0:
            gradient[-end:] = 1.0
        self._under_way = (flat, array, gradient, None)

    def norm(self, **_):
        self.reduce()
        square = sum(flat.gradient.square().sum() for flat in self.flats)
        dist.all_reduce(square, group=self.dp)
        return square.sqrt()


class NeverFrees(Zero3):
    """Gathers layer by layer, and keeps them."""

    def _release(self, *numbers):
        for number in numbers:
            for flat in self._parts[number]:
                flat.wait()


class FreesAfterForwardOnly(Zero3):
    """Backward gathers and does not free."""

    def _arrived(self, number, weight):
        Zero2._arrived(self, number, weight)


class RanksOwnWeights(Zero1):
    """Steps its piece, and forgets the others."""

    def _spread(self):
        pass


class SumForMean(Zero2):
    """Adds the gradients and never divides."""

    def _leave(self, flat):
        super()._leave(flat)
        flat, array, gradient, work = self._under_way
        work.wait()
        self._under_way = (flat, array, gradient * dist.get_world_size(self.dp), None)


@pytest.mark.parametrize("kind", [RanksOwnWeights, SumForMean])
def test_ranks_that_forget_a_gather_or_a_division_end_elsewhere(kind):
    with pytest.raises(AssertionError):
        assert wrong(run_ranks(_train, 2, kind)) == {}


def test_padding_that_enters_the_norm_changes_it():
    with pytest.raises(AssertionError):
        wrong(run_ranks(_train, 3, PaddingInTheNorm))


class FinishesByBucket(Zero1):
    """Adds up over tp what leaves together: ranks whose buckets differ would wait for each other for ever."""

    def _finish(self, weights):
        pass

    def _leave(self, flat):
        self.finish(flat.weights)
        super()._leave(flat)


def test_gradients_finished_bucket_by_bucket_go_in_another_order_for_other_buckets():
    assert finished(FinishesByBucket, 1e-6) != finished(FinishesByBucket, 25)


def _sent(rank, group, kind):
    zero = make(kind, new_model(), group)
    with fresh_ledger(), ledger() as log:
        advance(zero, rank, group, steps=range(1))
    return log.bytes_sent / 8 / sum(flat.whole.numel() for flat in zero.flats)


def test_an_all_reduce_that_is_kept_has_the_right_values_and_sends_too_much():
    assert wrong(run_ranks(_train, 2, AllReduceKept)) == {}
    assert all(sent == pytest.approx(3 / 2, abs=0.01) for sent in run_ranks(_sent, 2, AllReduceKept))
    assert all(sent == pytest.approx(2 / 2, abs=0.01) for sent in run_ranks(_sent, 2, Zero2))


def test_a_whole_gradient_that_is_kept_holds_as_much_as_stage_1():
    assert all(total == pytest.approx(9, rel=0.03) for total in run_ranks(_held_at_the_end, 2, Zero2))
    assert all(total == pytest.approx(11, rel=0.03) for total in run_ranks(_held_at_the_end, 2, FullGradientKept))


class LendsAllAtOnce(Zero2):
    """Shows the optimizer every gradient in float32."""

    def step(self):
        self.reduce()
        for flat in self.flats:
            flat.lend()
        self.optimizer.step()
        for flat in self.flats:
            flat.settle()
        self._spread()


def test_gradients_lent_all_at_once_have_the_right_values_and_are_over_the_peak_of_a_step():
    assert wrong(run_ranks(_train, 2, LendsAllAtOnce)) == {}
    for ((most, largest, of_all, _),) in run_ranks(_step_peaks, 2, [LendsAllAtOnce]):
        assert most >= 4 * of_all > 12 * largest


@pytest.mark.parametrize("kind", [NeverFrees, FreesAfterForwardOnly])
def test_weights_that_are_not_freed_are_over_the_peak(kind):
    assert not any(within(run_ranks(_peak, 4, kind)))


def pair():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def _half(module, *numbers):
    return [{"params": module[number].parameters()} for number in numbers]


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (lambda m: Zero1(m.requires_grad_(False), dp=None), "0 of 4 weights require a gradient"),
        (lambda m: Zero1(m, dp=None, groups=_half(m, 0)), r"2 weights are in no group, such as '1\.weight'"),
        (lambda m: Zero1(m, dp=None, groups=_half(m, 0, 1, 1)), r"'1\.weight' is in two groups"),
        (lambda m: Zero1(m, dp=None, groups=_half(pair(), 0)), "group 0 has a weight that is not in the module"),
        (lambda m: Zero1(m, dp=None, bucket_mb=0), "bucket_mb = 0 holds no gradient"),
        (lambda m: Zero3(m, dp=None, layers=[nn.Linear(1, 1)]), "layer 0, a Linear, is no part of the module"),
        (
            lambda m: Zero3(nn.Sequential(m), dp=None, layers=[m, m[0]]),
            "layers 0 and 1 share a module: give layers apart",
        ),
        (lambda m: Zero1(m, dp=None).clip(0), "max_norm = 0 would erase or turn the gradients"),
    ],
)
def test_what_cannot_be_sharded_is_refused_with_its_numbers(make_it, words):
    with pytest.raises(ValueError, match=words):
        make_it(pair())


def test_a_backward_after_one_that_broke_off_is_refused():
    module = pair()
    zero = Zero2(module, dp=None)

    def broken(_):
        raise KeyError("broken")

    x = torch.ones(1, 3)
    h = module[0](x)
    h.register_hook(broken)
    with pytest.raises(KeyError):
        module[1](h).sum().backward()
    with pytest.raises(ValueError, match=r"'1\.bias' got a gradient in an earlier backward that never ended"):
        zero.module(x).sum().backward()


def test_a_flat_array_is_padded_with_zeros_to_a_length_that_the_ranks_divide():
    flat = Flat({"a": nn.Parameter(torch.ones(3)), "b": nn.Parameter(torch.ones(2, 2))}, dp=None)
    assert (flat.n, flat.padding) == (7, 0)
    assert [(name, there, here) for name, _, there, here in flat.spans()] == [
        ("a", slice(0, 3), slice(0, 3)), ("b", slice(0, 4), slice(3, 7))
    ]  # fmt: skip


def _padded(rank, group):
    flat = Flat({"a": nn.Parameter(torch.ones(3)), "b": nn.Parameter(torch.ones(2, 2))}, dp=group)
    return flat.whole.tolist(), [(name, there, here) for name, _, there, here in flat.spans()]


def test_pieces_are_cut_through_weights_and_the_last_has_the_padding():
    first, second, third = run_ranks(_padded, 3)
    assert first[0] == second[0] == third[0] == [1.0] * 7 + [0.0] * 2
    assert first[1] == [("a", slice(0, 3), slice(0, 3))]
    assert second[1] == [("b", slice(0, 3), slice(0, 3))]
    assert third[1] == [("b", slice(3, 4), slice(0, 1))]
