"""Each pair's output and gradients are those of one device, and its calls are counted.

The one-device truth comes from autograd itself: all ranks' tensors on one device, the operation written with
torch.cat and sums, and the loss sum_r <dy_r, y_r>.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rig import run_ranks
from torch import Tensor
from wire_cases import make

from tpcourse import conjugates as pairs
from tpcourse import ledger as books

ITEM = 8  # bytes of a float64
REPLICATED_IN, REPLICATED_OUT = {"copy_sum", "split_gather"}, {"sum_copy", "gather_split"}
TAKES_SHARD, TAKES_DIM = {"gather_split", "gather_scatter_sum"}, {"gather_split", "split_gather"}
TAKES_DIM |= {"gather_scatter_sum", "scatter_sum_gather"}
NAMES = ["copy_sum", "sum_copy", *sorted(TAKES_DIM)]


def apply_everywhere(name: str, xs: list[Tensor], dim: int, sizes: list[int]) -> list[Tensor]:
    """The operation on one device: all ranks' inputs to all ranks' outputs."""
    p = len(xs)
    if name == "copy_sum":
        return xs
    if name == "sum_copy":
        return [sum(xs)] * p
    if name in TAKES_SHARD:
        return [torch.cat(xs, dim)] * p
    if name == "split_gather":
        return [x.split(sizes, dim)[r] for r, x in enumerate(xs)]
    return [piece.clone() for piece in sum(xs).split(sizes, dim)]


def truth(name, xs, dys, dim, sizes):
    """All ranks' y and dx by autograd on one device. A replicated tensor is one tensor, with one gradient."""
    p = len(xs)
    leaves = [xs[0].clone().requires_grad_()] * p if name in REPLICATED_IN else [x.clone().requires_grad_() for x in xs]
    ys = apply_everywhere(name, leaves, dim, sizes)
    counted = ys[:1] if name in REPLICATED_OUT else ys
    loss = sum((y * dy).sum() for y, dy in zip(counted, dys, strict=False))
    unique = leaves[:1] if name in REPLICATED_IN else leaves
    grads = torch.autograd.grad(loss, unique)
    return [y.detach() for y in ys], list(grads) * p if name in REPLICATED_IN else list(grads)


def problem(name, p, dim, sizes):
    """All ranks' inputs and output gradients."""
    shapes = [[2, 3, 4] for _ in range(p)]
    for r in range(p):
        shapes[r][dim] = sizes[r] if name in TAKES_SHARD else sum(sizes)
    xs = [make(0 if name in REPLICATED_IN else r, tuple(shape)) for r, shape in enumerate(shapes)]
    ys = apply_everywhere(name, xs, dim, sizes)
    dys = [make(50 if name in REPLICATED_OUT else 50 + r, tuple(y.shape)) for r, y in enumerate(ys)]
    return xs, dys


def size_lists(p):
    return [2] * p, [r + 1 for r in range(p)], [0] * (p - 1) + [3]


def _call(name, x, group, dim, sizes, source=pairs):
    options = {"dim": dim, "sizes": sizes} if name in TAKES_DIM else {}
    return getattr(source, name)(x, group=group, **options)


def _mistakes(rank, group, name):
    """Outputs, gradients and gradients of gradients that differ from the one-device ones."""
    p, found = dist.get_world_size(group), []
    for dim in (0, 1, 2, -1):
        for sizes in size_lists(p):
            xs, dys = problem(name, p, dim, sizes)
            ys, dxs = truth(name, xs, dys, dim, sizes)
            x, dy = xs[rank].clone().requires_grad_(), dys[rank].clone().requires_grad_()
            y = _call(name, x, group, dim, sizes)
            (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
            (again,) = torch.autograd.grad(dx, dy, xs[rank])  # <x, A^T dy> by dy is A x once more
            for what, result, expected in (("y", y, ys), ("dx", dx, dxs), ("y by backward of dx", again, ys)):
                if not torch.equal(result, expected[rank]):
                    found.append(f"{name} dim {dim} sizes {sizes}: {what} is {result}, expected {expected[rank]}")
    return found


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_y_and_dx_and_the_gradient_s_gradient_are_those_of_one_device(name, p):
    """Along any dim, with equal, unequal and empty pieces."""
    assert run_ranks(_mistakes, p, name) == [[]] * p


def _all_to_all_mistakes(rank, group):
    p, found = dist.get_world_size(group), []
    for table in ([[2] * p] * p, [[(2 * s + 3 * r) % 5 for r in range(p)] for s in range(p)]):
        leaves = [make(s, (sum(table[s]), 3)).requires_grad_() for s in range(p)]
        cut = [x.split(table[s]) for s, x in enumerate(leaves)]
        ys = [torch.cat([cut[s][r] for s in range(p)]) for r in range(p)]
        dys = [make(50 + r, tuple(y.shape)) for r, y in enumerate(ys)]
        dxs = torch.autograd.grad(sum((y * dy).sum() for y, dy in zip(ys, dys, strict=True)), leaves)
        x = leaves[rank].detach().requires_grad_()
        even = {} if table[0] == [2] * p else {"send_sizes": table[rank], "receive_sizes": [row[rank] for row in table]}
        y = pairs.all_to_all_pair(x, group=group, **even)
        y.backward(dys[rank])
        if not torch.equal(y, ys[rank]) or not torch.equal(x.grad, dxs[rank]):
            found.append(f"sizes {table}: y {y} dx {x.grad}, expected {ys[rank]} and {dxs[rank]}")
    return found


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_all_to_all_sends_gradients_home(p):
    assert run_ranks(_all_to_all_mistakes, p) == [[]] * p


def _strided_gradients(rank, group):
    """sum() sends back an expanded gradient, .T a transposed one: neither is contiguous."""
    found = []
    for name in NAMES:
        x = torch.ones(4, 4, dtype=torch.float64, requires_grad=True)
        _call(name, x.T, group, 0, None).T.sum().backward()
        if x.grad.shape != x.shape or not x.grad.eq(x.grad[0, 0]).all():
            found.append(f"{name}: {x.grad}")
    return found


def test_gradients_that_are_not_contiguous_are_taken():
    assert run_ranks(_strided_gradients, 2) == [[], []]


def _calls(rank, group, name):
    books.install()
    x = torch.ones(12, dtype=torch.float64, requires_grad=True)
    with books.ledger() as forward:
        y = _call(name, x, group, 0, None)
    with books.ledger() as backward:
        y.backward(torch.ones_like(y))
    with books.ledger() as without_gradient:
        _call(name, x.detach(), group, 0, None)
    logs = (forward, backward, without_gradient)
    return [([event.op for event in log.events], log.bytes_sent / ITEM) for log in logs]


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize(
    ("name", "forward", "backward"),
    [
        ("copy_sum", None, "all_reduce"),
        ("sum_copy", "all_reduce", None),
        ("gather_split", "all_gather", None),
        ("split_gather", None, "all_gather"),
        ("gather_scatter_sum", "all_gather", "reduce_scatter"),
        ("scatter_sum_gather", "reduce_scatter", "all_gather"),
        ("all_to_all_pair", "all_to_all", "all_to_all"),
    ],
)
def test_calls_and_bytes_forward_and_backward_are_those_of_the_docstring(name, forward, backward, p):
    whole = 12 * p if name in TAKES_SHARD else 12
    cost = {"all_reduce": 2 * (p - 1) / p * whole, None: 0}
    expected = [([op] if op else [], cost.get(op, (p - 1) / p * whole)) for op in (forward, backward, forward)]
    assert run_ranks(_calls, p, name) == [expected] * p


def _bytes_kept(rank, group):
    x = torch.ones(100, dtype=torch.float64, requires_grad=True)
    return pairs.split_gather(x, group=group, dim=0).untyped_storage().nbytes()


def test_a_piece_does_not_keep_the_whole_tensor_alive():
    assert run_ranks(_bytes_kept, 4) == [25 * ITEM] * 4


def _refusals(rank, group):
    x, said = torch.ones(5, 4, requires_grad=True), []
    for call in (
        lambda: pairs.gather_split(x, group=group, dim=2),
        lambda: pairs.gather_scatter_sum(x, group=group, dim=0, sizes=[4, 4]),
        lambda: pairs.split_gather(x, group=group, dim=0, sizes=[5]),
        lambda: pairs.scatter_sum_gather(x, group=group, dim=0, sizes=[4, 4]),
        lambda: pairs.all_to_all_pair(x, group=group),
    ):
        try:
            call()
            said.append("accepted")
        except ValueError as error:
            said.append(str(error).split(":")[0])
    return said


def test_bad_input_is_refused_before_anything_is_sent():
    assert run_ranks(_refusals, 2)[0] == [
        "a tensor of shape [5, 4] cannot be cut along dim 2",
        "sizes[0] = 4, but this rank's own piece is 5 long in dim 0",
        "1 sizes for a group of 2 ranks",
        "sizes = [4, 4] sum to 8, but dim 0 is 5 long",
        "the length of dim 0 = 5 does not divide by 2 ranks (5 = 2 x 2 + 1)",
    ]
