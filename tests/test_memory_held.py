"""What a rank holds, counted by storage: model states to the byte, each memory once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tpcourse import memory
from tpcourse.adam import MixedAdam
from tpcourse.layer import TransformerLayer


def model(*sizes, dtype=torch.bfloat16):
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False))).to(dtype)


def step(net, optimizer):
    """One step; gradients stay."""
    first = next(net.parameters())
    x = torch.randn(3, first.shape[-1], dtype=first.dtype)
    net(x).square().mean().backward()
    optimizer.step()


def count(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("keep_master", "rate"), [(True, 16), (False, 12)])
def test_mixed_precision_adam_holds_16_bytes_a_parameter_or_12(keep_master, rate):
    net = model(7, 11, 3)
    adam = MixedAdam(net.parameters(), keep_master=keep_master)
    step(net, adam)
    held = memory.held(net, adam)
    states = {kind: size for kind, size in held.items() if kind != "other"}
    assert states == memory.model_state_bytes(count(net), master=keep_master)
    assert sum(states.values()) == rate * count(net)
    assert held["other"] == 4 * 4, "a step count for each of four parameters"


def test_the_states_of_a_transformer_layer_are_16_bytes_a_parameter():
    layer = TransformerLayer(24, heads=3).bfloat16()
    adam = MixedAdam(layer.parameters())
    layer(torch.randn(2, 5, 24, dtype=torch.bfloat16)).square().mean().backward()
    adam.step()
    assert count(layer) == memory.layer_parameters(24)
    assert memory.held(layer, adam).total == 16 * count(layer) + memory.held(layer, adam)["other"]


def test_float32_adam_holds_16_bytes_a_parameter_too_and_no_master_copy():
    net = model(5, 4, dtype=torch.float32)
    adam = torch.optim.Adam(net.parameters())
    step(net, adam)
    assert memory.held(net, adam).per(count(net)) == {
        "parameter": 4, "gradient": 4, "moment": 8, "other": 2 * 4 / count(net)
    }  # fmt: skip


def test_before_the_first_step_there_are_neither_gradients_nor_moments():
    net = model(5, 4)
    assert memory.held(net, MixedAdam(net.parameters())).per(count(net)) == {"parameter": 2, "master": 4}
    assert memory.held(net, MixedAdam(net.parameters(), keep_master=False)).per(count(net)) == {
        "parameter": 2
    }


def test_tied_weights_count_once():
    net = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6, bias=False))
    net[1].weight = net[0].weight
    assert memory.held(net) == {"parameter": 6 * 4 * 4}


def test_gradients_that_are_views_of_one_bucket_hold_the_bucket_once():
    net = model(3, 5, dtype=torch.float32)
    bucket = torch.zeros(32)
    net[0].weight.grad, net[0].bias.grad = bucket[:15].view(5, 3), bucket[15:20]
    assert memory.held(net)["gradient"] == 32 * 4
    assert memory.held(net, buffer=[bucket]) == {"parameter": 20 * 4, "gradient": 32 * 4}


def test_a_frozen_parameter_holds_no_gradient_and_no_moments():
    net = model(4, 4, 4)
    net[0].requires_grad_(False)
    adam = MixedAdam(net.parameters())
    step(net, adam)
    assert memory.held(net, adam)["gradient"] == 20 * 2
    assert memory.held(net, adam)["moment"] == 20 * 8
    assert memory.held(net, adam)["parameter"] == 40 * 2


def test_buffers_and_named_kinds_are_counted_apart():
    net = nn.BatchNorm1d(6)
    kept, bucket = torch.zeros(10), torch.zeros(3, dtype=torch.float64)
    held = memory.held(net, activation=[kept, kept[2:4]], buffer={"bucket": bucket})
    assert held == {"parameter": 12 * 4, "activation": 40, "buffer": 12 * 4 + 8 + 24}
    assert list(held) == ["parameter", "activation", "buffer"]


def test_momentum_and_the_third_moment_are_moments():
    net = model(4, 2, dtype=torch.float32)
    for optimizer, moments in (
        (torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), 1),
        (torch.optim.Adam(net.parameters(), amsgrad=True), 3),
    ):
        step(net, optimizer)
        assert memory.held(net, optimizer)["moment"] == moments * 4 * count(net)


def test_what_has_no_memory_here_counts_nothing_and_a_sparse_gradient_its_parts():
    with torch.device("meta"):
        assert memory.held(nn.Linear(1000, 1000)) == {}
    table = nn.Embedding(100, 4, sparse=True)
    table(torch.tensor([3, 7])).sum().backward()
    assert memory.held(table)["gradient"] == 2 * 8 + 2 * 4 * 4


def test_everything_alive_is_found_and_told_apart_by_whether_it_waits_for_a_backward():
    net, x = model(30, 20, dtype=torch.float32), torch.ones(7, 30)
    before = memory.held(net, alive=True)
    lost = net(x), torch.zeros(11)
    after = memory.held(net, alive=True)
    assert after.get("activation", 0) - before.get("activation", 0) == 7 * 20 * 4
    assert after["other"] - before.get("other", 0) == lost[1].nbytes
    assert memory.held().total == after.total, "without arguments, all that is alive"


def test_a_tensor_in_a_dead_circle_is_not_held():
    before = memory.held()
    circle = [torch.zeros(1000)]
    circle.append(circle)
    del circle
    assert memory.held().total == before.total


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: memory.held(nn.ReLU()), "this model has 0 parameters"),
        (lambda: memory.held([torch.ones(1)]), r"a list is no torch.nn.Module: .* held\(parameter="),
        (
            lambda: memory.held(nn.Linear(1, 1), weights=[]),
            "'weights' is no kind of memory: use parameter, gradient",
        ),
        (lambda: memory.held(nn.Linear(1, 1), object()), "this optimizer has 0 parameters"),
        (lambda: MixedAdam([]), "0 of 0 parameters require a gradient"),
        (lambda: MixedAdam([torch.ones(1)]), "0 of 1 parameters require a gradient"),
    ],
)
def test_what_holds_nothing_is_refused_with_its_number(call, words):
    with pytest.raises(ValueError, match=words):
        call()
