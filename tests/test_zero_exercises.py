"""Lesson 07's checks: what they expect is torch's answer, other right ways pass, and ways around the budgets do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from exercise_help import failure
from zero_answers import ANSWERS, AROUND, RIGHT, changed

from tpcourse import check
from tpcourse.check.borrowed import borrowed_kernel
from tpcourse.check.compare import first_difference
from tpcourse.check.evidence import Evidence, Outcome
from tpcourse.check.fresh import MOST
from tpcourse.check.lesson07 import layers, reloaded_adam, scattered_gradients
from tpcourse.check.lesson07.common import OWN
from tpcourse.check.lesson07.plain import Adam, cut, new_options, piece_size, real_size
from tpcourse.check.lesson07.rank_objects import Gradient, Layer
from tpcourse.check.lesson07.sharded_adam import Played
from tpcourse.check.runner import LESSONS, find
from tpcourse.zero import Zero1

NAMES = [name for name, module in LESSONS.items() if module.startswith("lesson07")]


def evidence(name, case, seed=3):
    spec = find(name)
    inputs = spec.make(case, np.random.default_rng(seed))
    return Evidence(case, inputs, spec.expected(case, inputs), [Outcome()] * case.p)


def found(name):
    return [evidence(name, case) for case in find(name).cases(4)]


def to_torch(array):
    return torch.from_numpy(array.copy())


def close(got, right):
    np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-12)


# What the checks expect


def test_the_expected_weights_are_those_of_torch_s_adamw_with_all_examples():
    for case in found("sharded_adam"):
        given = case.inputs[0]
        weights = to_torch(given["weights"]["array"])
        adam = torch.optim.AdamW([weights], **given["options"])
        gradients = [Gradient(*map(to_torch, own["gradient"].data.values())) for own in case.inputs]
        for _ in range(given["steps"]):
            weights.grad = sum(gradient(weights) for gradient in gradients) / case.p
            adam.step()
        close(case.expected[-1], weights)


def test_the_gradient_of_an_exercise_is_that_of_half_the_mean_square():
    (case, *_) = found("sharded_adam")
    gradient = Gradient(*map(to_torch, case.inputs[0]["gradient"].data.values()))
    weights = to_torch(case.inputs[0]["weights"]["array"]).requires_grad_()
    ((gradient.rows @ weights - gradient.targets) ** 2 / 2).mean().backward()
    close(gradient(weights), weights.grad)
    with pytest.raises(ValueError, match=r"shape \[10\]; give it the 9 without padding"):
        gradient(torch.ones(10, dtype=torch.float64))


def one_device(case):
    """The five layers with whole weights, the mean of the ranks' losses: y of each rank, gradients."""
    stack = layers.stack(case.case)
    flats = [
        np.concatenate([own["pieces"]["arrays"][i] for own in case.inputs])[:n] for i, n in enumerate(stack.sizes)
    ]
    flats = [to_torch(flat).requires_grad_() for flat in flats]
    ys, losses = [], []
    for own in case.inputs:
        y = to_torch(own["x"])
        for flat, width in zip(flats, stack.widths[1:], strict=True):
            y = torch.tanh(torch.nn.functional.linear(y, flat[:-width].view(width, -1), flat[-width:]))
        ys.append(y.detach())
        losses.append(((y - to_torch(own["target"])) ** 2).sum() / 2)
    torch.stack(losses).mean().backward()
    return ys, [flat.grad.numpy() for flat in flats]


@pytest.mark.parametrize("name", ["layered_step", "prefetched_step"])
def test_the_expected_gradients_of_layers_are_those_of_autograd(name):
    for case in found(name):
        ys, gradients = one_device(case)
        for rank, (y, *pieces) in enumerate(case.expected):
            close(y, ys[rank])
            for piece, gradient in zip(pieces, gradients, strict=True):
                close(piece, cut(gradient, case.p)[rank])


def test_a_layer_s_backward_is_that_of_autograd():
    layer, generator = Layer(0, 3, 4), torch.Generator().manual_seed(0)
    x, flat, dy = (torch.randn(n, generator=generator, dtype=torch.float64) for n in ((2, 3), (layer.size,), (2, 4)))
    dx, dflat = layer.backward(x, flat, dy)
    layer.forward(x.requires_grad_(), flat.requires_grad_()).backward(dy)
    close(dx, x.grad)
    close(dflat, flat.grad)
    with pytest.raises(ValueError, match=r"shape \[18\]; it has 16, without padding"):
        layer.forward(x, torch.ones(18, dtype=torch.float64))


def test_the_expected_norm_and_pieces_are_those_of_torch():
    for case in found("clipped_piece"):
        P = case.inputs[0]["P"]
        weight = torch.nn.Parameter(torch.zeros(P, dtype=torch.float64))
        weight.grad = to_torch(np.concatenate([own["piece"] for own in case.inputs])[:P])
        norm = torch.nn.utils.clip_grad_norm_([weight], case.inputs[0]["max_norm"])
        close([row[0] for row in case.expected], [norm] * case.p)
        clipped = np.concatenate([row[1] for row in case.expected])[:P]
        np.testing.assert_allclose(clipped, weight.grad, rtol=1e-5)  # torch adds 1e-6 to the norm


def test_the_padding_of_a_piece_is_nan_in_one_case_and_infinite_in_another():
    paddings = [np.concatenate([own["piece"] for own in e.inputs])[e.inputs[0]["P"] :] for e in found("clipped_piece")]
    assert [np.isnan(padding).all() for padding in paddings] == [False, False, False, False, True]
    assert [np.isinf(padding).all() for padding in paddings] == [False, True, False, False, False]


def test_a_piece_that_was_reloaded_goes_on_as_one_device_does():
    for case in found("reloaded_adam"):
        P, given = case.case.sizes["P"], case.inputs[0]
        arrays = [to_torch(np.concatenate([f[n] for f in given["read"]["files"]])[:P]) for n in reloaded_adam.NAMES]
        adam = torch.optim.AdamW(arrays[:1], **given["options"])
        step = torch.tensor(float(reloaded_adam.STEPS))
        adam.state[arrays[0]] = {"step": step, "exp_avg": arrays[1], "exp_avg_sq": arrays[2]}
        arrays[0].grad = to_torch(np.concatenate([own["gradient"]["array"] for own in case.inputs])[:P])
        adam.step()
        real = [row[3][: real_size(P, case.p, rank)] for rank, row in enumerate(case.expected)]
        close(np.concatenate(real), arrays[0])


def test_a_rank_needs_the_files_that_share_an_element_with_its_piece():
    for case in found("reloaded_adam"):
        P, saved = case.case.sizes["P"], case.case.sizes["saved_by"]
        n, old = piece_size(P, case.p), piece_size(P, saved)
        for rank in range(case.p):
            files = sorted({i // old for i in range(rank * n, min(P, rank * n + n))})
            assert reloaded_adam.needed(case.case, rank) == files
            assert files


def test_with_its_usual_eps_adam_does_not_notice_a_sum_for_a_mean_and_with_ours_it_does():
    generator = np.random.default_rng(0)
    options, weights, gradient = new_options(generator), generator.normal(size=9), generator.normal(size=9)
    right, wrong = (Adam.new(9).step(weights, factor * gradient, options) for factor in (1, 4))
    assert abs(right - wrong).max() > 0.01
    usual = options | {"eps": 1e-8}
    right, wrong = (Adam.new(9).step(weights, factor * gradient, usual) for factor in (1, 4))
    assert abs(right - wrong).max() < 1e-7


def test_the_right_algorithm_played_rank_by_rank_is_the_one_device_answer():
    for case in found("sharded_adam"):
        assert first_difference(Played()(case), case.expected) is None


@pytest.mark.parametrize("name", NAMES)
def test_runs_are_not_alike_and_p_leaves_a_rest_in_every_group(name):
    for case in find(name).cases(4):
        pairs = zip(*(evidence(name, case, seed).expected for seed in (1, 2)), strict=True)
        assert all(first_difference(a, b) for a, b in pairs)
    rests = {p: [] for p in (2, 3, 4)}
    for case in find(name).cases(4):
        sizes = layers.stack(case).sizes if "L" in case.sizes else [case.sizes["P"]]
        rests[case.p] += [size % case.p for size in sizes]
    assert all(any(rest) for rest in rests.values()) or name == "reloaded_adam"


def test_layers_are_told_apart_by_the_length_of_their_pieces():
    for p in (2, 3, 4):
        for stack in (layers.Stack(p, layers.D + p * more) for more in range(MOST + 1)):
            assert len(set(stack.wholes)) == layers.L
            assert 8 * 2 * layers.EXAMPLES * max(stack.widths) < 8 * min(stack.sizes), "slack hides no layer"


def test_the_number_of_weights_is_that_of_no_group_s_ranks():
    for case in find("scattered_gradients").cases(4):
        assert len(scattered_gradients.shapes(case.sizes["P"])) not in (2, 3, 4)


# Answers


@pytest.fixture
def ranks(shared_ranks):
    shared_ranks.run_cell("\n".join(f"globals().pop({name!r}, None)" for name in NAMES))
    ANSWERS.set_up(shared_ranks)
    with shared_ranks.patient(3.0):
        yield shared_ranks


@pytest.mark.parametrize("way", RIGHT)
def test_another_right_way_passes(ranks, way, capsys):
    name, answer = RIGHT[way]
    ranks.run_cell(answer)
    check.exercise(ranks, name)
    assert capsys.readouterr().out.startswith(f"{name}: passed")


@pytest.mark.parametrize("way", AROUND)
def test_a_way_around_a_budget_does_not_pass(ranks, way):
    name, answer, sentence = AROUND[way]
    ranks.run_cell(answer)
    assert sentence in failure(ranks, name)


def test_layers_that_are_not_called_are_noticed(ranks):
    ranks.run_cell(changed("prefetched_step", ("p, L =", "layers[0].watch = lambda *_: None\n    p, L =")))
    assert "calls the layers in another order" in failure(ranks, "prefetched_step")


def test_a_layer_that_nobody_waited_for_is_noticed_on_every_machine(ranks):
    ranks.run_cell(changed("prefetched_step", ("        work.wait()\n", "")))
    text = failure(ranks, "prefetched_step")
    assert "values ✓" in text
    assert "layer 0 begins its forward, and its all_gather was not waited for" in text


def with_zero(weights, gradient, steps, options, dp):
    return Zero1(weights, dp=dp)


def test_the_course_s_own_stages_are_no_answer():
    assert borrowed_kernel(with_zero, OWN) == "tpcourse.zero.Zero1"
