"""A norm, a residual and an MLP with the tokens split between its products: one device's answer, from uneven pieces."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ledger_help import logged
from rig import run_ranks
from torch import Tensor

from tpcourse import conjugates as pairs
from tpcourse.dims import split_range
from tpcourse.sequence import enter, leave, sum_gradients, token_sizes

B, D, HIDDEN = 2, 5, 7
LENGTHS = (4, 6, 7, 11)
WHOLE = ["scale", "shift", "bias", "last"]  # weights that every rank holds whole
ITEM = 8  # bytes of a float64


def numbers(T: int) -> dict[str, Tensor]:
    """x, the weights and dy of one device, the same on every rank."""
    generator = torch.Generator().manual_seed(T)
    shapes = {"x": (B, T, D), "up": (HIDDEN, D), "down": (D, HIDDEN), "dy": (B, T, D)} | dict.fromkeys(WHOLE, (D,))
    return {name: torch.randn(*shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def one_device(T: int) -> dict[str, Tensor]:
    """y, dx and the gradient of every weight."""
    n = {name: value.requires_grad_(name != "dy") for name, value in numbers(T).items()}
    z = F.gelu(F.layer_norm(n["x"], (D,), n["scale"], n["shift"]) @ n["up"].T) @ n["down"].T + n["bias"]
    y = F.rms_norm(n["x"] + z, (D,), n["last"])
    dy = n.pop("dy")
    return {"y": y.detach(), **dict(zip(n, torch.autograd.grad(y, list(n.values()), dy), strict=True))}


def on_ranks(group, T, add_up, into_mlp="split", into_loss="replicated") -> dict[str, Tensor]:
    """The same on this rank: T_r tokens in norms and residual, F/p hidden numbers in the MLP."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    hidden = slice(*split_range(HIDDEN, p, rank))
    n = numbers(T)
    n["up"], n["down"] = n["up"][hidden].clone(), n["down"][:, hidden].clone()
    n = {name: value.requires_grad_(name != "dy") for name, value in n.items()}
    x = enter(n["x"], tp=group)  # [B, T_r, D]
    h = F.layer_norm(x, (D,), n["scale"], n["shift"])
    h = leave(h, tp=group, num_tokens=T, into=into_mlp)  # [B, T, D]
    z = F.gelu(h @ n["up"].T) @ n["down"].T  # [B, T, D], partial
    z = pairs.scatter_sum_gather(z, group=group, dim=1) + n["bias"]  # [B, T_r, D]
    y = leave(F.rms_norm(x + z, (D,), n["last"]), tp=group, num_tokens=T, into=into_loss)  # [B, T, D]
    dy = n.pop("dy")
    found = {"y": y.detach(), **dict(zip(n, torch.autograd.grad(y, list(n.values()), dy), strict=True))}
    add_up([found[name] for name in WHOLE], group)
    return found


def once(gradients, group):
    sum_gradients(gradients, tp=group)


def never(gradients, group):
    """The norm's weights are whole on every rank, and so their gradients seem to be."""


def twice(gradients, group):
    once(gradients, group)
    once(gradients, group)


def average(gradients, group):
    once(gradients, group)
    for gradient in gradients:
        gradient /= dist.get_world_size(group)


def _wrong(rank, group, add_up=once, options=None):
    """Names of the tensors that differ from one device's, for any length."""
    found_wrong, p = set(), dist.get_world_size(group)
    for T in LENGTHS:
        expected, found = one_device(T), on_ranks(group, T, add_up, **(options or {}))
        hidden = slice(*split_range(HIDDEN, p, rank))
        expected["up"], expected["down"] = expected["up"][hidden], expected["down"][:, hidden]
        for name, value in expected.items():
            if not torch.allclose(found[name], value, rtol=1e-12, atol=1e-12):
                found_wrong.add(name)
    return sorted(found_wrong)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_norm_and_residual_on_some_tokens_each_give_the_values_and_all_gradients_of_one_device(p):
    assert run_ranks(_wrong, p) == [[]] * p


@pytest.mark.parametrize("add_up", [never, twice, average])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_the_sum_of_replicated_weights_gradients_forgotten_done_twice_or_averaged_shows_in_those_alone(p, add_up):
    assert run_ranks(_wrong, p, add_up) == [sorted(WHOLE)] * p


@pytest.mark.parametrize("p", [2, 3, 4])
def test_leaving_into_split_work_as_if_it_were_replicated_leaves_y_right_and_gradients_before_it_short(p):
    assert run_ranks(_wrong, p, once, {"into_mlp": "replicated"}) == [["scale", "shift", "x"]] * p


@pytest.mark.parametrize("p", [2, 3, 4])
def test_leaving_into_replicated_work_as_if_it_were_split_leaves_y_right_and_every_gradient_too_large(p):
    expected = sorted([*WHOLE, "down", "up", "x"])
    assert run_ranks(_wrong, p, once, {"into_loss": "split"}) == [expected] * p


def _there_and_back(rank, group):
    """Names of the dims and lengths at which `leave(enter(x))` is not x, or a piece is not that of `token_sizes`."""
    found, p = [], dist.get_world_size(group)
    for dim in (0, 1, 2, -1, -2):
        for T in LENGTHS:
            shape = [2, 3, 5]
            shape[dim] = T
            x = torch.randn(shape, dtype=torch.float64).requires_grad_()
            start, end = split_range(T, p, rank)
            piece = enter(x, tp=group, dim=dim)
            y = leave(piece, tp=group, dim=dim, num_tokens=T)
            dy = torch.randn_like(y)
            (dx,) = torch.autograd.grad(y, x, dy)
            same = torch.equal(piece, x.narrow(dim, start, end - start)) and torch.equal(y, x) and torch.equal(dx, dy)
            own_memory = piece.untyped_storage().nbytes() == piece.nbytes
            if not same or not own_memory or token_sizes(T, tp=group)[rank] != end - start:
                found.append((dim, T))
    return found


@pytest.mark.parametrize("p", [2, 3, 4])
def test_enter_then_leave_is_the_identity_both_ways_along_any_dim_and_a_piece_keeps_only_itself_alive(p):
    assert run_ranks(_there_and_back, p) == [[]] * p


def _even_without_length(rank, group):
    x = torch.randn(2, 12, 3)
    return torch.equal(leave(enter(x, tp=group), tp=group), x)


def test_even_pieces_need_no_length():
    assert run_ranks(_even_without_length, 3) == [True] * 3


def _calls(rank, group, T, into):
    """What `enter` and `leave` send: forward, then backward."""
    x = torch.ones(B, T, D, dtype=torch.float64, requires_grad=True)
    kept = []

    def forward(step, start):
        kept.append((start, step(start)))

    def backward():
        start, y = kept[-1]
        kept.append(torch.autograd.grad(y, start, torch.ones_like(y)))

    logs = [logged(forward, lambda x: enter(x, tp=group), x), logged(backward)]
    piece = enter(x.detach(), tp=group).requires_grad_()
    logs += [logged(forward, lambda x: leave(x, tp=group, num_tokens=T, into=into), piece), logged(backward)]
    return [[(event.op, event.bytes_sent) for event in log.events] for log in logs]


@pytest.mark.parametrize(("into", "back"), [("replicated", None), ("split", "reduce_scatter")])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_enter_and_leave_make_the_calls_they_say_of_p_minus_1_of_the_p_longest_pieces(p, into, back):
    T = 7
    sent = (p - 1) * B * D * -(-T // p) * ITEM
    expected = [[], [("all_gather", sent)], [("all_gather", sent)], [(back, sent)] if back else []]
    assert run_ranks(_calls, p, T, into) == [expected] * p


def reduce_then_slice(z, group):
    """The same values at twice the bytes: every rank receives all tokens, and keeps its own."""
    return enter(pairs.sum_copy(z, group=group), tp=group)


def scatter_sum(z, group):
    return pairs.scatter_sum_gather(z, group=group, dim=1)


def _sums(rank, group):
    z = torch.randn(B, 12, D, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    results, sent = [], []
    for road in (scatter_sum, reduce_then_slice):
        log = logged(lambda road=road: results.append(road(z, group)))
        sent.append(log.bytes_sent)
    return torch.allclose(*results, rtol=1e-12, atol=1e-12), sent


@pytest.mark.parametrize("p", [2, 3, 4])
def test_an_all_reduce_and_a_slice_give_the_same_at_twice_the_bytes_of_a_reduce_scatter(p):
    n = B * 12 * D * ITEM
    assert run_ranks(_sums, p) == [(True, [(p - 1) * n // p, 2 * (p - 1) * n // p])] * p


def test_on_one_device_nothing_happens():
    x = torch.randn(2, 5, 3)
    assert enter(x, tp=None) is x and leave(x, tp=None, num_tokens=5) is x and leave(x, tp=None, into="split") is x
    assert token_sizes(5, tp=None) == [5]


def _refusals(rank, group):
    x, texts = torch.zeros(2, 7, 3), []
    for call in (
        lambda: enter(torch.zeros(2, 3, 5), tp=group),
        lambda: leave(torch.zeros(2, 0, 5), tp=group),
        lambda: leave(enter(x, tp=group), tp=group, num_tokens=12),
        lambda: leave(x, tp=group, num_tokens=7),
        lambda: enter(x, tp=group, dim=3),
        lambda: leave(x, tp=group, into="partial"),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are compared by the caller)
            call()
        texts.append(str(caught.value))
    return texts


def test_what_cannot_be_cut_or_joined_is_refused_on_every_rank_with_the_numbers():
    for rank, texts in enumerate(run_ranks(_refusals, 4)):
        few, none, other, whole, dim, into = texts
        assert few == "3 tokens on 4 ranks leave 1 without any: use at least 4 tokens, or at most 3 ranks"
        assert "0 tokens on 4 ranks" in none
        assert "[2, 7, 3] cannot be cut along dim 3" in dim
        assert into == "into = 'partial' is unknown: use 'replicated' or 'split'"
        mine = [2, 2, 2, 1][rank]
        assert f"dim 1 is 7 long, but rank {rank} of 4 has {mine} of 7 tokens" in whole
        assert f"dim 1 is {mine} long, but rank {rank} of 4 has 3 of 12 tokens" in other
