"""Lesson 06's checks: what they expect is one device's answer, and what they count as held or borrowed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exercise_help import Answers, failure
from torch.nn import functional as F

from tpcourse import sequence, wire
from tpcourse.check.borrowed import borrowed_kernel
from tpcourse.check.lesson06.common import LAYERS
from tpcourse.check.lesson06.nets import EPS
from tpcourse.check.lesson06.rank_regathered_column import hidden_bytes
from tpcourse.check.lesson06.recipe import WHOLE, D, K
from tpcourse.check.runner import find

P = 3


def norm(x, scale):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * scale


def plain_block(x, w):
    """The block as one device holds it: heads and hidden units of all ranks in one matrix each."""
    batch, tokens, _ = x.shape
    h = F.linear(norm(x, w["norm1.scale"]), w["qkv.weight"], w["qkv.bias"])
    q, k, v = h.view(batch, tokens, P, 3, K).permute(3, 0, 2, 1, 4)  # [B, H, T, K]
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    x = x + F.linear(heads, w["out.weight"], w["attention_bias"])
    h = F.gelu(F.linear(norm(x, w["norm2.scale"]), w["up.weight"], w["up.bias"]))
    return x + F.linear(h, w["down.weight"], w["mlp_bias"])


def whole_weights(parts):
    """One device's weights from all ranks': rows of out and down lie side by side, other parts one below the other."""
    found = {name: parts[0][name] for name in WHOLE}
    found |= {name: np.concatenate([part[name] for part in parts], 1) for name in ("out.weight", "down.weight")}
    for name in ("qkv.weight", "qkv.bias", "up.weight", "up.bias"):
        found[name] = np.concatenate([part[name] for part in parts])
    return {name: torch.from_numpy(value).requires_grad_() for name, value in found.items()}


def case_and_inputs(name):
    spec = find(name)
    case = spec.cases(4)[P - 2]
    assert case.p == P
    inputs = spec.make(case, np.random.default_rng(1))
    return inputs, spec.expected(case, inputs)


def joined(pieces):
    return torch.from_numpy(np.concatenate(list(pieces), 1)).requires_grad_()


def whole_gradient(expected, name):
    """What the ranks' expected gradients come to: parts side by side, shares of whole weights added up."""
    found = [dict(zip(row.names, row, strict=True))[f"d{name}"] for row in expected]
    return sum(found) if name in WHOLE else np.concatenate(found, int(name in ("out.weight", "down.weight")))


def test_the_expected_block_is_that_of_one_device_with_all_heads_and_hidden_units():
    inputs, expected = case_and_inputs("sequence_block")
    weights = whole_weights([given["block"].weights for given in inputs])
    x, dy = joined(given["x"] for given in inputs), joined(given["dy"] for given in inputs)
    y = plain_block(x, weights)
    y.backward(dy.detach())
    np.testing.assert_allclose(np.concatenate([row[0] for row in expected], 1), y.detach(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([row[1] for row in expected], 1), x.grad, rtol=1e-10, atol=1e-12)
    for name in set(weights) - {"norm3.scale"}:
        np.testing.assert_allclose(whole_gradient(expected, name), weights[name].grad, rtol=1e-10, atol=1e-12)


def test_the_expected_gradients_of_the_bug_hunt_are_those_of_one_device():
    inputs, expected = case_and_inputs("block_gradients")
    weights = whole_weights([given["block"].weights for given in inputs])
    x = joined(given["x"] for given in inputs)
    norm(plain_block(x, weights), weights["norm3.scale"]).backward(torch.from_numpy(inputs[0]["dy"].array))
    for name, weight in weights.items():
        copies = P if name in WHOLE else 1
        np.testing.assert_allclose(whole_gradient(expected, name) / copies, weight.grad, rtol=1e-10, atol=1e-12)


def test_the_expected_product_is_that_of_one_device():
    inputs, expected = case_and_inputs("regathered_column")
    x = joined(given["x"] for given in inputs)
    weights = [torch.from_numpy(given["weight"]).requires_grad_() for given in inputs]
    biases = [torch.from_numpy(given["bias"]).requires_grad_() for given in inputs]
    y = F.linear(x, torch.cat(weights), torch.cat(biases))
    y.backward(torch.from_numpy(np.concatenate([given["dy"] for given in inputs], 2)))
    for row, mine, dx, weight, bias in zip(expected, y.chunk(P, 2), x.grad.chunk(P, 1), weights, biases, strict=True):
        for got, right in zip(row, (mine.detach(), dx, weight.grad, bias.grad), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-12)


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, hides):
        ctx.held = [x.repeat(3, 1), weight] if hides else None
        return x @ weight

    @staticmethod
    def backward(ctx, dy):
        return dy, None, None


@pytest.mark.parametrize(("hides", "num_bytes"), [(True, 3 * 4 * D * 8), (False, 0)])
def test_a_tensor_in_an_attribute_of_ctx_counts_as_held_and_a_weight_there_does_not(hides, num_bytes):
    x, weight = torch.ones(4, D, dtype=torch.float64, requires_grad=True), torch.ones(D, D, dtype=torch.float64)
    y = Keeps.apply(2 * x, weight, hides) + 1
    assert hidden_bytes(y, [weight]) == num_bytes


class InAMethod:
    @staticmethod
    def forward(x, group):
        return sequence.enter(x, tp=group)


def through_a_class(x, group):
    return InAMethod.forward(x, group)


def imported_inside(x, group):
    from tpcourse.linear import column_linear as product

    return product(x, x, tp=group)


def by_the_package(x, group):
    import tpcourse

    return tpcourse.sequence.enter(x, tp=group)


def with_wire(x, block, group):
    return wire.all_gather(block.sequence(x), group=group)


def hidden_under_the_product(x, weight, group):
    from tpcourse.overlap import gather_product

    return gather_product(x, weight, tp=group)


leave = sequence.leave  # as if a cell had imported it


def by_an_attribute_of_that_name(x, group):
    return x.leave(group)


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (by_an_attribute_of_that_name, ""),
        (through_a_class, "tpcourse.sequence.enter"),
        (imported_inside, "tpcourse.linear.column_linear"),
        (by_the_package, "tpcourse.sequence.enter"),
        (hidden_under_the_product, "tpcourse.overlap.gather_product"),
        (sequence.leave, "tpcourse.sequence.leave"),
        (with_wire, ""),
    ],
)
def test_a_kernel_of_the_course_is_found_in_classes_and_behind_imports(answer, name):
    assert borrowed_kernel(answer, LAYERS) == name


def test_what_a_class_keeps_between_forward_and_backward_is_seen(shared_ranks):
    lesson = Answers("06_sequence_parallel")
    lesson.set_up(shared_ranks)
    gathered = "wire.all_gather(x, group=group, dim=1)"
    kept = f"RegatheredColumn.kept = [{gathered}]"
    change = (f"return {gathered} @", f"{kept}\n        return RegatheredColumn.kept[0] @")
    shared_ranks.run_cell(lesson.changed("regathered_column", change))
    assert "a name outside of forward keeps it" in failure(shared_ranks, "regathered_column")
