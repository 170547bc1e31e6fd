"""The most bytes held at one time, operation by operation."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from tpcourse import memory
from tpcourse.adam import MixedAdam
from tpcourse.layer import TransformerLayer, run_layer

KILO = torch.ones(250)  # 1000 bytes
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_a_storage_counts_from_the_operation_that_makes_it_until_nobody_refers_to_it():
    with memory.peak() as seen:
        a = KILO + 1
        b = a + 1
        del a
        c = b + 1
        del b, c
    assert seen.curve == [0, 1000, 2000, 2000, 0]
    assert (seen.bytes, seen.left) == (2000, 0)


def test_views_and_work_in_place_hold_nothing_more():
    with memory.peak() as seen:
        a = KILO.clone()
        a[:100].view(10, 10).add_(1)
        KILO[5:].mul_(1)
    assert seen.bytes == a.nbytes


def test_what_autograd_keeps_is_held_until_its_backward():
    x = torch.ones(250, requires_grad=True)
    with memory.peak() as seen:
        y = x.exp().exp().exp().sum()
        kept = seen.curve[-1]
        y.backward()
    assert kept == 3000 + 4
    assert seen.left == x.grad.nbytes + y.nbytes


def test_a_result_that_is_dropped_takes_its_graph_with_it():
    x = torch.ones(250, requires_grad=True)
    with memory.peak() as seen:
        x.exp().exp()
        x.exp()
    assert seen.bytes == 2000
    assert seen.left == 0


def test_marks_name_moments():
    with memory.peak() as seen:
        a = KILO + 1
        seen.mark("second")
        a + 1
    (index, name) = seen.marks[0]
    assert name == "second"
    assert seen.curve[index : index + 2] == [1000, 2000]


def test_an_error_in_the_block_goes_on_and_what_was_seen_travels():
    def block():
        with memory.peak() as seen:
            found.append(seen)
            _ = KILO + 1
            raise KeyError

    found = []
    with pytest.raises(KeyError):
        block()
    assert found[0].bytes == 1000
    assert pickle.loads(pickle.dumps(found[0])) == found[0]


def test_full_recompute_lowers_the_peak_of_several_layers_by_what_it_does_not_keep():
    peaks = {}
    for recompute in ("none", "full"):
        torch.manual_seed(0)
        layers = nn.ModuleList(TransformerLayer(64, 4) for _ in range(4)).bfloat16()
        x = torch.randn(2, 64, 64, dtype=torch.bfloat16, requires_grad=True)
        with memory.peak() as seen:
            y = x
            for layer in layers:
                y = run_layer(layer, y, recompute)
            y.sum().backward()
        peaks[recompute] = seen.bytes
    one = memory.activation_bytes(2, 64, 64, 4)
    assert peaks["none"] > 4 * one
    assert one < peaks["full"] < 3 * one


@pytest.mark.parametrize("keep_master", [True, False])
def test_an_optimizer_step_needs_a_float32_gradient_for_a_moment_and_without_a_master_copy_also_that(
    keep_master,
):
    net = nn.Linear(64, 64, bias=False).bfloat16()
    adam = MixedAdam(net.parameters(), keep_master=keep_master)
    for _ in range(2):
        net.weight.grad = torch.ones_like(net.weight)
        with memory.peak() as seen:
            adam.step()
    assert seen.bytes >= (4 if keep_master else 8) * 64 * 64
    assert seen.left <= 64, "nothing stays but what was there before"


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_the_counts_agree_with_the_allocator():
    layer = TransformerLayer(4096, 32).to("cuda", torch.bfloat16)  # 3.2 GB: beside it cuBLAS' 64 MiB weigh little
    adam = MixedAdam(layer.parameters())
    x = torch.randn(4, 512, 4096, device="cuda", dtype=torch.bfloat16)
    with memory.peak() as seen:
        layer(x).square().mean().backward()
        adam.step()
    held = memory.held(layer, adam, activation=[x])
    assert held.allocated == pytest.approx(held.total, rel=0.05)
    assert held.peak >= held.allocated
    assert seen.bytes <= seen.allocator * 1.01
    assert seen.bytes == pytest.approx(seen.allocator, rel=0.15)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("recompute", memory.RECOMPUTE)
def test_on_a_gpu_a_layer_keeps_what_the_formula_says(recompute):
    layer = TransformerLayer(512, 8).to("cuda", torch.bfloat16)
    x = torch.randn(2, 256, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    said = memory.activation_bytes(2, 256, 512, 8, recompute=recompute)
    assert memory.saved(run_layer, layer, x, recompute).bytes == pytest.approx(said, rel=0.005)
