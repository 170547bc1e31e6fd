"""Every form on NCCL, as many ranks as there are GPUs, at most 4: values, races, side streams, graphs, sums."""

from __future__ import annotations

import random
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from linear_cases import TIGHT
from overlap_cases import KERNELS, cases, errors
from rig import run_ranks

from tpcourse import timeline
from tpcourse.overlap import area

NUM_GPUS = min(4, torch.cuda.device_count())
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 CUDA GPUs, found {NUM_GPUS}"),
]
FORMS = ("serial", "ring", "peer", "popular", "auto")
ROUGH = 2e-2  # bfloat16, sums of some hundred products


def _apart(rank, group):
    """Cases and tensors that are not those of one device."""
    wrong = []
    for kind, form, (name, case) in product(KERNELS, FORMS, cases()):
        apart = errors(group, kind, case, form, to="cuda")
        wrong += [f"{kind}, {form}, {name}: {tensor}" for tensor, error in apart.items() if not error < TIGHT]
    for kind, (name, case), pieces in product(KERNELS, cases(), (1, 2, 4)):
        apart = errors(group, kind, case, "peer", to="cuda", pieces=pieces)
        wrong += [f"{kind}, {pieces} pieces, {name}: {tensor}" for tensor, error in apart.items() if not error < TIGHT]
    return wrong


@pytest.mark.parametrize("p", range(2, NUM_GPUS + 1))
def test_every_form_gives_the_values_and_all_gradients_of_one_device_on_nccl(p):
    assert run_ranks(_apart, p, backend="nccl") == [[]] * p


def poison(group) -> None:
    """Fill the memory that `peer` shares with nan, between two calls."""
    torch.cuda.synchronize()
    dist.barrier(group, device_ids=[torch.cuda.current_device()])
    for found in area._areas.get(group, {}).values():
        found.memory.fill_(255)
    torch.cuda.synchronize()
    dist.barrier(group, device_ids=[torch.cuda.current_device()])


def _drawn(shapes: random.Random, kind: str, p: int, rank: int):
    """x, weight and dy of this rank, in bfloat16, of sizes that are drawn; the same sizes on all ranks."""
    b, each, into, out = (
        shapes.randint(1, 3),
        shapes.randint(1, 600),
        8 * shapes.randint(1, 200),
        8 * shapes.randint(1, 90),
    )
    tokens = (each, each * p) if kind == "gather" else (each * p, each)
    options = {"device": "cuda", "generator": torch.Generator("cuda").manual_seed(shapes.randint(0, 9999) + 7 * rank)}
    made = [torch.randn(*shape, **options) for shape in ([b, tokens[0], into], [out, into], [b, tokens[1], out])]
    return [t.bfloat16() for t in made]


def _options(shapes: random.Random, kind: str) -> dict[str, object]:
    """Pieces, and whether backward gathers again."""
    pieces, regather = shapes.choice([None, 1, 2, 4]), shapes.random() < 0.5
    return {"pieces": pieces, "regather": regather} if kind == "gather" else {"pieces": pieces}


def _values(group, kind, form, x, weight, dy, **options):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    y = KERNELS[kind](x, weight, tp=group, form=form, **options)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), dy)]


def _race(rank, group, form):
    """100 random shapes, twice: how many tensors are far from serial's, and how many differ between the two times."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills what is allocated with nan
    far, values = 0, []
    try:
        for seed in (3, 3):
            shapes, found = random.Random(seed), []
            for number in range(100):
                kind = shapes.choice(["gather", "scatter"])
                tensors, options = _drawn(shapes, kind, group.size(), rank), _options(shapes, kind)
                if number % 10 == 0:
                    poison(group)
                found.append(_values(group, kind, form, *tensors, **options))
                for ours, right in zip(found[-1], _values(group, kind, "serial", *tensors), strict=True):
                    apart = (ours.float() - right.float()).abs().max() / right.float().abs().max()
                    far += not float(apart) < ROUGH
            values.append(found)
    finally:
        torch.use_deterministic_algorithms(False)
    pairs = [pair for a, b in zip(*values, strict=True) for pair in zip(a, b, strict=True)]
    return far, sum(not torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("form", ["ring", "peer"])
def test_100_random_shapes_in_poisoned_memory_are_right_and_the_same_twice(form):
    assert run_ranks(_race, NUM_GPUS, form, backend="nccl", timeout=300) == [(0, 0)] * NUM_GPUS


def _tensors(rank, kind, p):
    return _drawn(random.Random(11), kind, p, rank)


EVERY = [("gather", {}), ("gather", {"regather": True}), ("scatter", {}), ("scatter", {"pieces": 1})]


def _elsewhere(rank, group):
    """On a side stream, with work before and behind it: whether all tensors are those of the default stream."""
    found, side = [], torch.cuda.Stream()
    for (kind, options), form in product(EVERY, ("ring", "peer")):
        x, weight, dy = _tensors(rank, kind, group.size())
        right = _values(group, kind, form, x, weight, dy, **options)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)  # x is made late
            got = [_values(group, kind, form, x + 0, weight + 0, dy + 0, **options) for _ in range(5)]
        torch.cuda.current_stream().wait_stream(side)
        found += [all(torch.equal(a, b) for a, b in zip(one, right, strict=True)) for one in got]
    return found


def test_every_form_is_safe_on_a_side_stream():
    assert run_ranks(_elsewhere, NUM_GPUS, backend="nccl") == [[True] * 40] * NUM_GPUS


def _captured(rank, group):
    """A captured graph of a forward and backward, replayed with other inputs and eager ones between: whether all are
    right.
    """
    found = []
    for kind, options in EVERY:
        x, weight, dy = _tensors(rank, kind, group.size())
        both = partial(_values, group, kind, "peer", x, weight, dy, **options)
        both()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = both()
        for _ in range(6):
            x.copy_(torch.randn_like(x))
            right = both()
            graph.replay()
            graph.replay()
            found.append(all(torch.equal(a, b) for a, b in zip(got, right, strict=True)))
    return found


def test_a_captured_graph_gives_what_eager_calls_give():
    assert run_ranks(_captured, NUM_GPUS, backend="nccl") == [[True] * 24] * NUM_GPUS


def _accumulated(rank, group):
    """Gradients of three backwards in float64: whether they are three times one."""
    found = []
    for kind, form in product(KERNELS, FORMS):
        x, weight, dy = (t.double() for t in _tensors(rank, kind, group.size()))
        _, dx, dweight = _values(group, kind, form, x, weight, dy)
        x.requires_grad_(), weight.requires_grad_()
        for _ in range(3):
            KERNELS[kind](x, weight, tp=group, form=form).backward(dy)
        pairs = ((x.grad, 3 * dx), (weight.grad, 3 * dweight))
        found.append(all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in pairs))
    return found


def test_gradients_add_up_over_backwards():
    assert run_ranks(_accumulated, NUM_GPUS, backend="nccl") == [[True] * 10] * NUM_GPUS


def _seen(rank, group):
    """Lane and name of what the profiler saw in a call of each kind, without numbers."""
    found = []
    for kind in KERNELS:
        x, weight, _ = _tensors(rank, kind, group.size())
        spans = timeline.record(lambda: KERNELS[kind](x, weight, tp=group, form="peer"))  # noqa: B023 (called at once)
        found.append({(span.lane, span.name.rstrip("0123456789")) for span in spans})
    return found


def test_in_a_timeline_copies_to_and_from_others_are_communication_and_products_are_computing():
    for gathered, scattered in run_ranks(_seen, NUM_GPUS, backend="nccl"):
        assert {("communication", "push to rank "), ("compute", "product")} <= gathered
        assert {("communication", "pull from rank "), ("compute", "product")} <= scattered
        for lane, name in gathered | scattered:
            assert lane == "communication" or "signal" not in name
