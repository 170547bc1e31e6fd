"""Form `peer` with all ranks on ONE GPU, each a process: memory, signals and streams are real, speed is not.

Processes take turns on the GPU, so that a rank may be ahead of another by any distance: good for finding races. The
control plane is gloo. Right is what one device computes in float64.
"""

from __future__ import annotations

import os
import random
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from linear_cases import TIGHT
from overlap_cases import KERNELS, cases, errors
from rig import close_team, run_ranks

from tpcourse.overlap import area

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, found none"),
]
ROUGH = 2e-2  # bfloat16, sums of some hundred products
NAMES = ("y", "dx", "dweight")
EVERY = [
    ("gather", {}),
    ("gather", {"pieces": 2}),
    ("scatter", {}),
    ("scatter", {"pieces": 1}),
    ("scatter", {"pieces": 4}),
]


@pytest.fixture(autouse=True, scope="module")
def _leave():
    """Ranks that have the GPU's memory end with these tests."""
    yield
    for p in (2, 4):
        close_team(p)


def here() -> None:
    """All ranks on the first GPU, which torch allows when told so."""
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
    torch.cuda.set_device(0)


def _apart(rank, group):
    """Which tensors of which case are not those of one device in float64."""
    here()
    wrong = []
    for kind, (name, case), pieces in product(KERNELS, cases(), (None, 1, 4)):
        apart = errors(group, kind, case, "peer", to="cuda", pieces=pieces)
        wrong += [f"{kind}, {pieces} pieces, {name}: {tensor}" for tensor, error in apart.items() if not error < TIGHT]
    for name, case in list(cases())[:4]:
        apart = errors(group, "gather", case, "peer", to="cuda", regather=True)
        wrong += [f"regather, {name}: {tensor}" for tensor, error in apart.items() if not error < TIGHT]
    return wrong


@pytest.mark.parametrize("p", [2, 4])
def test_values_and_all_gradients_are_those_of_one_device(p):
    assert run_ranks(_apart, p, timeout=60) == [[]] * p


def drawn(shapes: random.Random, kind: str, p: int, dtype=torch.bfloat16):
    """x, weight and dy of every rank, of sizes that are drawn: the same on all ranks."""
    b, each, into, out = (
        shapes.randint(1, 3),
        shapes.randint(1, 300),
        8 * shapes.randint(1, 90),
        8 * shapes.randint(1, 90),
    )
    tokens = (each, each * p) if kind == "gather" else (each * p, each)
    draw = partial(torch.randn, device="cuda", generator=torch.Generator("cuda").manual_seed(shapes.randint(0, 9999)))
    sizes = ([b, tokens[0], into], [out, into], [b, tokens[1], out])
    return [[draw(*size).to(dtype) for size in sizes] for _ in range(p)]


def one_device(kind: str, of_ranks, rank: int):
    """This rank's y, dx and dW, in float64."""
    xs, weights, dys = ([tensor.double() for tensor in of_kind] for of_kind in zip(*of_ranks, strict=True))
    p = len(xs)
    if kind == "gather":
        x = torch.cat(xs, 1)
        dx = sum(dy @ weight for dy, weight in zip(dys, weights, strict=True)).chunk(p, 1)[rank]
        return x @ weights[rank].T, dx, torch.einsum("bto,bti->oi", dys[rank], x)
    dy = torch.cat(dys, 1)
    y = sum(x @ weight.T for x, weight in zip(xs, weights, strict=True)).chunk(p, 1)[rank]
    return y, dy @ weights[rank], torch.einsum("bto,bti->oi", dy, xs[rank])


def values(group, kind, x, weight, dy, **options):
    x, weight = x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    y = KERNELS[kind](x, weight, tp=group, form="peer", **options)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), dy)]


def is_near(ours, right, most) -> bool:
    return all(float((a.double() - b).abs().max() / b.abs().max()) < most for a, b in zip(ours, right, strict=True))


def poison(group) -> None:
    """Fill the memory that `peer` shares with nan, between two calls."""
    for fill in (True, False):
        torch.cuda.synchronize()
        dist.barrier(group)
        for found in area._areas.get(group, {}).values() if fill else ():
            found.memory.fill_(255)


def _race(rank, group, num_calls):
    """Random shapes, twice: how many calls are far from one device's, and how many differ between the two times."""
    here()
    far, both = 0, []
    for seed in (3, 3):
        shapes, found = random.Random(seed), []
        for number in range(num_calls):
            kind, options = shapes.choice(EVERY)
            of_ranks = drawn(shapes, kind, group.size())
            if number % 10 == 0:
                poison(group)
            found.append(values(group, kind, *of_ranks[rank], **options))
            far += not is_near(found[-1], one_device(kind, of_ranks, rank), ROUGH)
        both.append(found)
    same = [all(torch.equal(a, b) for a, b in zip(*pair, strict=True)) for pair in zip(*both, strict=True)]
    return far, same.count(False)


@pytest.mark.parametrize(("p", "num_calls"), [(2, 100), (4, 25)])
def test_random_shapes_in_poisoned_memory_are_right_and_the_same_twice(p, num_calls):
    assert run_ranks(_race, p, num_calls, timeout=60) == [(0, 0)] * p


def _elsewhere(rank, group):
    """On a side stream, with x made late: whether all tensors are those of the default stream."""
    here()
    found, side = [], torch.cuda.Stream()
    for kind, options in EVERY:
        x, weight, dy = drawn(random.Random(11), kind, group.size())[rank]
        right = values(group, kind, x, weight, dy, **options)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            got = [values(group, kind, x + 0, weight + 0, dy + 0, **options) for _ in range(4)]
        torch.cuda.current_stream().wait_stream(side)
        found += [all(torch.equal(a, b) for a, b in zip(one, right, strict=True)) for one in got]
    return found


def test_a_side_stream_gives_what_the_default_stream_gives():
    assert run_ranks(_elsewhere, 2, timeout=60) == [[True] * 20] * 2


def _captured(rank, group):
    """A graph of forward and backward, replayed twice with other inputs, eager calls between: whether all are right."""
    here()
    found = []
    for kind, options in EVERY:
        x, weight, dy = drawn(random.Random(11), kind, group.size())[rank]
        both = partial(values, group, kind, x, weight, dy, **options)
        both()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = both()
        for _ in range(4):
            x.copy_(torch.randn_like(x))
            right = both()
            graph.replay()
            graph.replay()
            found.append(all(torch.equal(a, b) for a, b in zip(got, right, strict=True)))
        torch.cuda.synchronize()
        dist.barrier(group)
    return found


def test_a_captured_graph_gives_what_eager_calls_give():
    assert run_ranks(_captured, 2, timeout=60) == [[True] * 20] * 2


def _accumulated(rank, group):
    """Gradients of three backwards in float64: whether they are three times one device's."""
    here()
    found = []
    for kind, options in EVERY:
        of_ranks = drawn(random.Random(11), kind, group.size(), torch.float64)
        x, weight, dy = of_ranks[rank]
        x.requires_grad_(), weight.requires_grad_()
        for _ in range(3):
            KERNELS[kind](x, weight, tp=group, form="peer", **options).backward(dy)
        _, dx, dweight = one_device(kind, [[t.detach() for t in tensors] for tensors in of_ranks], rank)
        found.append(is_near((x.grad, weight.grad), (3 * dx, 3 * dweight), TIGHT))
    return found


def test_gradients_add_up_over_backwards():
    assert run_ranks(_accumulated, 2, timeout=60) == [[True] * 5] * 2
