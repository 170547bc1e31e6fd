"""What a step of each stage sends: elements to the last one, and the order of its calls."""

from __future__ import annotations

import pytest
import torch
from ledger_help import fresh_ledger
from rig import run_ranks
from zero_cases import SMALL, Part, advance, make, new_model

from tpcourse.ledger import ledger
from tpcourse.zero import Zero3

TRAINED = sum(w.numel() for w in new_model().parameters() if w.requires_grad)


def _sent(rank, group, cases):
    """Elements sent in the second step, padded and not, and the calls, for each case."""
    found = []
    for stage, options, micro_batches in cases:
        zero = make(stage, new_model(), group, **options)
        advance(zero, rank, group, steps=range(1))
        with fresh_ledger(), ledger() as log:
            advance(zero, rank, group, steps=range(1, 2), micro_batches=micro_batches, syncs=True)
        heavy = [event for event in log.events if event.op != "all_reduce"]
        norms = [event.numel for event in log.events if event.op == "all_reduce"]
        padded = sum(flat.whole.numel() for flat in zero.flats)
        sent = {op: sum(e.bytes_sent for e in heavy if e.op == op) // 8 for op in ("all_gather", "reduce_scatter")}
        found.append((sent, padded, len(zero.flats), len(heavy), norms))
    return found


CASES = [(1, {}, 1), (2, {}, 1), (3, {}, 1), (1, {"bucket_mb": 25}, 3), (2, {"bucket_mb": 25}, 3), (3, {}, 3)]


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_step_sends_2_2_and_3_times_the_weights_and_their_padding_exactly(p):
    for rank in run_ranks(_sent, p, CASES):
        for (stage, _, micro), (sent, padded, num_flats, calls, norms) in zip(CASES, rank, strict=True):
            assert TRAINED <= padded < TRAINED + p * num_flats
            each = padded * (p - 1) // p
            gathers = 2 * micro if stage == 3 else 1
            sums = micro if stage > 1 else 1
            assert sent == {"all_gather": gathers * each, "reduce_scatter": sums * each}, (stage, micro)
            assert calls == (gathers + sums) * num_flats
            assert norms == [1], "the norm is one number"


class Mark(torch.autograd.Function):
    """Notes when forward and backward come by."""

    @staticmethod
    def forward(ctx, x, note, name):
        ctx.note, ctx.name = note, name
        note(f"forward {name}")
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        ctx.note(f"backward {ctx.name}")
        return dx, None, None


class Marked(Part):
    def forward(self, h):
        return Mark.apply(super().forward(h), self.note, self.name)


def _order(rank, group, prefetch):
    """What one rank does in one step, in order: calls by the layer they are for, and marks."""
    model = torch.nn.Sequential(*(Marked(7, 6 + number) for number in range(4))).double()
    zero = Zero3(model, dp=group, prefetch=prefetch)
    sizes = {part[0].n: number for number, part in enumerate(zero._parts[1:])}
    seen = []
    with fresh_ledger(), ledger() as log:

        def note(text):
            for event in log.events[sum("call" in line for line in seen) :]:
                assert event.is_async
                n = event.numel // (2 if event.op == "reduce_scatter" else 1)
                seen.append(f"call {event.op} {sizes[n]}")
            seen.append(text)

        for number, layer in enumerate(model):
            layer.note, layer.name = note, number
        model(torch.ones(2, 7, dtype=torch.float64)).sum().backward()
        note("end")
    return [line.replace("call all_gather", "gather").replace("call reduce_scatter", "scatter") for line in seen]


FORWARD = "gather 0, gather 1, forward 0, gather 2, forward 1, gather 3, forward 2, forward 3"
BACKWARD = (
    "gather 3, gather 2, backward 3, scatter 3, gather 1, backward 2, scatter 2, gather 0, backward 1, scatter 1, "
    "backward 0, scatter 0"
)
ONE_BY_ONE = "gather 0, forward 0, gather 1, forward 1, gather 2, forward 2, gather 3, forward 3"
AND_BACK = "gather 3, backward 3, scatter 3, gather 2, backward 2, scatter 2, gather 1, backward 1, scatter 1"


def test_each_layer_is_gathered_one_layer_ahead_forward_and_backward():
    assert run_ranks(_order, 2, True) == [f"{FORWARD}, {BACKWARD}, end".split(", ")] * 2


def test_without_prefetch_each_layer_is_gathered_when_it_begins():
    expected = f"{ONE_BY_ONE}, {AND_BACK}, gather 0, backward 0, scatter 0, end".split(", ")
    assert run_ranks(_order, 2, False) == [expected] * 2


def _buckets(rank, group, stage):
    """How many buckets have left when backward comes by the first layer, and in all."""
    zero, counts = make(stage, new_model(), group, bucket_mb=SMALL), []
    with fresh_ledger(), ledger() as log:
        zero.module.enter.register_forward_hook(
            lambda module, args, out: Mark.apply(out, lambda text: counts.append(len(log.events)), "enter")
        )
        zero.module(torch.ones(2, 5, dtype=torch.float64)).sum().backward()
        counts.append(len(log.events))
    return counts[1:], len(zero.flats)


def test_in_stage_2_buckets_leave_while_backward_runs_and_in_stage_1_after_it():
    assert all(counts == [0, 0] for counts, _ in run_ranks(_buckets, 2, 1))
    for (during, after), num in run_ranks(_buckets, 2, 2):
        assert num - 2 <= during < after == num


def _silent(rank, group):
    """Calls of a backward within `no_sync`: sums, gathers."""
    found = []
    for stage in (2, 3):
        zero = make(stage, new_model(), group)
        with fresh_ledger(), ledger() as log, zero.no_sync():
            zero.module(torch.ones(2, 5, dtype=torch.float64)).sum().backward()
        found.append((log.count("reduce_scatter"), log.count("all_gather")))
    return found, len(zero.flats)


def test_within_no_sync_no_gradient_is_sent_and_stage_3_still_gathers():
    for (second, third), num_flats in run_ranks(_silent, 2):
        assert second == (0, 0) and third == (0, 2 * num_flats)
