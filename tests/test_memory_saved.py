"""What autograd keeps: the activations of a transformer layer equal the formula, at three shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tpcourse import memory
from tpcourse.layer import TransformerLayer, run_layer

SHAPES = [  # batch, tokens, width, heads; scores are 27 to 74 % of all
    (2, 128, 256, 8),
    (1, 256, 384, 6),
    (3, 192, 320, 20),
]


def layer_and_input(batch, tokens, width, heads, dtype=torch.bfloat16, **parts):
    torch.manual_seed(0)
    layer = TransformerLayer(width, heads, **parts).to(dtype)
    return layer, torch.randn(batch, tokens, width, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("recompute", memory.RECOMPUTE)
def test_a_layer_keeps_what_the_formula_says_within_half_a_percent(shape, recompute):
    layer, x = layer_and_input(*shape)
    kept = memory.saved(run_layer, layer, x, recompute)
    assert kept.bytes == pytest.approx(memory.activation_bytes(*shape, recompute=recompute), rel=0.005)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_layer_keeps_beyond_the_formula_is_two_statistics_a_token_for_each_norm(shape):
    layer, x = layer_and_input(*shape)
    batch, tokens, *_ = shape
    surplus = memory.saved(layer, x).bytes - memory.activation_bytes(*shape)
    assert 0 < surplus <= 2 * 2 * 4 * batch * tokens


def test_full_recompute_keeps_the_input_and_nothing_else():
    layer, x = layer_and_input(*SHAPES[0])
    kept = memory.saved(run_layer, layer, x, "full")
    assert kept.bytes == x.nbytes


def test_in_float64_a_layer_keeps_what_the_formula_says_of_8_bytes():
    shape = SHAPES[0]
    layer, x = layer_and_input(*shape, dtype=torch.float64)
    for recompute in ("none", "selective"):
        said = memory.activation_bytes(*shape, recompute=recompute, element_bytes=8)
        assert memory.saved(run_layer, layer, x, recompute).bytes == pytest.approx(said, rel=0.005)


@pytest.mark.parametrize("tp", [2, 4])
def test_a_rank_s_part_of_a_layer_keeps_what_the_formula_says_of_tensor_parallelism(tp):
    batch, tokens, width, heads = SHAPES[0]
    layer, x = layer_and_input(
        batch, tokens, width, heads // tp, head_width=width // heads, hidden=4 * width // tp
    )
    said = memory.activation_bytes(batch, tokens, width, heads, tp=tp)
    assert memory.saved(layer, x).bytes == pytest.approx(said, rel=0.005)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recompute_changes_no_value_and_no_gradient(recompute):
    results = []
    for how in ("none", recompute):
        layer, x = layer_and_input(2, 8, 12, 3, dtype=torch.float64)
        torch.manual_seed(5)
        y = run_layer(layer, x, how)
        y.square().sum().backward()
        results.append([y, x.grad, *(p.grad for p in layer.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def flops(recompute, shape):
    layer, x = layer_and_input(*shape)
    with FlopCounterMode(display=False) as counter:
        run_layer(layer, x, recompute).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_products_of_a_step_cost_what_the_formula_says(shape):
    batch, tokens, width, _ = shape
    assert flops("none", shape) == memory.layer_flops(batch, tokens, width)
    assert flops("full", shape) == memory.layer_flops(batch, tokens, width, recompute="full")


def test_torch_stops_recomputing_early_and_pays_one_of_the_two_attention_products():
    batch, tokens, width, _ = shape = SHAPES[0]
    extra = flops("selective", shape) - flops("none", shape)
    assert extra == 2 * batch * tokens**2 * width
    said = memory.layer_flops(batch, tokens, width, recompute="selective") - memory.layer_flops(
        batch, tokens, width
    )
    assert said == 2 * extra


def test_a_storage_that_is_saved_twice_counts_once_and_says_so():
    x = torch.ones(100, requires_grad=True)
    kept = memory.saved(lambda: torch.sigmoid(x) * torch.tanh(x))
    assert kept.bytes == 2 * x.nbytes
    assert [k.times for k in kept.kept] == [2, 2]
    assert "saved 2 times" in repr(kept)


def test_a_view_keeps_the_whole_storage_behind_it():
    x = torch.ones(8, 10, requires_grad=True)

    def gate():
        both = x + 1
        return both[:, :5].sigmoid() * both[:, 5:]

    assert memory.saved(gate).bytes == 80 * 4 + 40 * 4


def test_parameters_are_counted_apart_also_behind_a_view_or_a_closure():
    net = nn.Linear(6, 4, bias=False)
    x = torch.ones(3, 6, requires_grad=True)
    for call in (lambda: net(x), lambda: x @ net.weight.t()):
        kept = memory.saved(call)
        assert (kept.bytes, kept.parameter_bytes) == (x.nbytes, 6 * 4 * 4)
    assert memory.saved(net, x).bytes == x.nbytes
    plain = torch.ones(6, 4, requires_grad=True)
    assert memory.saved(lambda: x @ plain, parameters=[plain]).bytes == x.nbytes


def test_what_is_not_returned_or_has_been_run_backward_is_no_longer_kept():
    x = torch.ones(50, requires_grad=True)

    def wasteful():
        x.exp().sin()
        return x.exp()

    def finished():
        y = x.exp()
        y.sum().backward()
        return y

    assert memory.saved(wasteful).bytes == x.nbytes
    assert memory.saved(finished).bytes == 0


def test_counting_leaves_nothing_behind():
    x = torch.ones(250, requires_grad=True)
    with memory.peak() as seen:
        assert memory.saved(lambda: x.exp().sigmoid().tanh()).bytes == 3000
    assert seen.left == 0


def test_backward_after_counting_gives_the_usual_gradients():
    layer, x = layer_and_input(2, 8, 12, 3, dtype=torch.float64)
    results = []

    def run():
        results.append(layer(x))
        return results[-1]

    torch.manual_seed(5)
    memory.saved(run)
    torch.manual_seed(5)
    run()
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in results]
    assert torch.equal(*gradients)


@torch.no_grad()
def without_gradients(x):
    return nn.Linear(2, 2)(x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: memory.saved(torch.exp, torch.ones(3)), "exp returned 0 tensors that need a backward"),
        (lambda: memory.saved(without_gradients, torch.ones(2)), "without_gradients returned 0 tensors"),
        (
            lambda: run_layer(TransformerLayer(4, 2), torch.ones(1, 2, 4), "half"),
            "recompute = 'half' is unknown",
        ),
        (lambda: TransformerLayer(10, 4), "width = 10 does not divide by 4"),
        (lambda: TransformerLayer(0, 4), "width = 0, heads = 4"),
        (lambda: TransformerLayer(8, 4, dropout=1.0), "dropout = 1.0"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_numbers(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_layer_is_causal_and_in_evaluation_without_dropout():
    layer, x = layer_and_input(1, 6, 8, 2, dtype=torch.float64)
    layer.eval()
    y = layer(x)
    assert torch.equal(y, layer(x))
    (gradient,) = torch.autograd.grad(y[0, 2].sum(), x)
    assert gradient[0, :3].abs().min() > 0
    assert gradient[0, 3:].abs().max() == 0


def test_a_layer_equals_torch_s_own_encoder_layer():
    ours, x = layer_and_input(2, 5, 12, 3, dtype=torch.float64)
    theirs = nn.TransformerEncoderLayer(
        12, 3, 48, activation="gelu", batch_first=True, norm_first=True
    ).double()
    names = {
        "self_attn.in_proj_": "qkv.",
        "self_attn.out_proj.": "out.",
        "linear1.": "up.",
        "linear2.": "down.",
    }
    state = {}
    for name, value in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = value
    ours.load_state_dict(state)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x, src_mask=mask), rtol=1e-12, atol=1e-12)
