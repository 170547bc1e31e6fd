"""Mistakes close to those of `wrong_answers`, made from solutions of lessons 05 to 08: what each is told, if at all."""

from __future__ import annotations

import pytest
from exercise_help import Answers, failure

LESSONS = {name[:2]: Answers(name) for name in ("05_columns_and_rows", "06_sequence_parallel", "07_zero", "08_overlap")}
FIRST_ONLY = "(dist.get_rank(group) == 0)"
LAST_ONLY = "(dist.get_rank(group) == dist.get_world_size(group) - 1)"
ADAMW = "torch.optim.AdamW([piece], **options)"
RETURNS = "    if not x.shape[1]:\n        return torch.zeros(())\n"
GATHER = "    h = conjugates.gather_scatter_sum(mlp.norm"
P, FIRST, ENTER = "dist.get_world_size(tp)", "dist.get_rank(tp) == 0", "    x = copy_sum(x, group=tp)\n"
PROJECTION = ("(x @ copy_sum(kv_weight, group=shared).T)", "copy_sum(x @ kv_weight.T, group=shared)")
REDUCED, ONE_RANK = "`dist.reduce` leaves its result on one rank", "only its copy of the bias has a gradient"
OVER, SUMMED = "the all-reduces are more or larger", "All is right but the gradient of the bias"
COPIED_TWICE = [(ENTER, ""), ("(x @ q", "(copy_sum(x, group=tp) @ q"), ("(x @ copy", "(copy_sum(x, group=tp) @ copy")]
OF_COLUMNS_AND_ROWS = {
    "mlp, bias behind": ("parallel_mlp", ONE_RANK, ("+ bias2", f"+ (bias2 if {FIRST} else 0)")),
    "mlp, bias in front": ("parallel_mlp", ONE_RANK, (", group=tp) + bias2", f" + bias2 * ({FIRST}), group=tp)")),
    "mlp, all averaged": ("parallel_mlp", "are averaged", (", group=tp) + bias2", f" + bias2, group=tp) / {P}")),
    "mlp, bias summed": ("parallel_mlp", SUMMED, ("+ bias2", "+ copy_sum(bias2, group=tp)")),
    "mlp, weight summed": ("parallel_mlp", "gradients of cut weights", ("@ weight1", "@ copy_sum(weight1, group=tp)")),
    "bias inside": ("parallel_attention", "(p-1) x out_bias", (", group=tp) + out_bias", " + out_bias, group=tp)")),
    "bias/p": ("parallel_attention", "dout_bias is p", (", group=tp) + out_bias", f" + out_bias / {P}, group=tp)")),
    "bias on one": ("parallel_attention", ONE_RANK, ("+ out_bias", f"+ (out_bias if {FIRST} else 0)")),
    "bias summed": ("parallel_attention", SUMMED, ("+ out_bias", "+ copy_sum(out_bias, group=tp)")),
    "averaged": ("parallel_attention", "is averaged", ("+ out_bias", f"/ {P} + out_bias")),
    "two copies": ("parallel_attention", "share of k and v too often", PROJECTION),
    "behind alone": ("parallel_attention", "is owed more than that", PROJECTION, (ENTER, "")),
    "copied twice": ("parallel_attention", OVER, *COPIED_TWICE),
    "residual, bias summed": ("residual_mlp", SUMMED, ("+ bias2", "+ copy_sum(bias2, group=tp)")),
    "dx to one rank": ("column_product", REDUCED, ("all_reduce(dx", "reduce(dx, group_dst=0")),
    "squares to one rank": ("gradient_norm", REDUCED, ("all_reduce(total", "reduce(total, group_dst=0")),
    "maximum to one rank": ("vocabulary_loss", REDUCED, ("all_reduce(top", "reduce(top, group_dst=0")),
}
TOLD = {
    "a rank without tokens returns": (
        "06",
        "uneven_tokens",
        [(GATHER, RETURNS + GATHER)],
        "A rank without tokens returns with fewer calls",
    ),
    "both biases on the first rank": (
        "06",
        "sequence_block",
        [("+ block.attention", f"+ {FIRST_ONLY} * block.attention"), ("+ block.mlp", f"+ {FIRST_ONLY} * block.mlp")],
        "A bias is added on some ranks and not on others",
    ),
    "a bias on the last rank": (
        "06",
        "sequence_block",
        [("+ block.attention_bias", f"+ {LAST_ONLY} * block.attention_bias")],
        "A bias is added on some ranks and not on others",
    ),
    "a bias in the sum on one rank": (
        "06",
        "sequence_block",
        [(" + block.mlp_bias", ""), ("block.mlp(h)", f"block.mlp(h) + {FIRST_ONLY} * block.mlp_bias")],
        "a bias gets all tokens' gradient on one rank and none on the others",
    ),
    "the first norm forgotten": (
        "06",
        "block_gradients",
        [("[block.norm1.scale.grad, ", "[")],
        "One gradient is still partial, that of `norm1.scale`",
    ),
    "an own gradient, divided": (
        "07",
        "sharded_adam",
        [("        dist.all_reduce(g, group=dp)\n", "")],
        "Each rank steps its piece with the gradient of its own examples",
    ),
    "Adam": ("07", "sharded_adam", [("AdamW", "Adam")], "The step is Adam's"),
    "SGD": (
        "07",
        "sharded_adam",
        [(ADAMW, 'torch.optim.SGD([piece], options["lr"])')],
        "The step is plain gradient descent",
    ),
    "dy divided too": (
        "07",
        "layered_step",
        [("dy = x - target", "dy = (x - target) / p")],
        "on their way they are divided by p twice",
    ),
    "the last layer first": ("07", "prefetched_step", [("[::-1]", "")], "the last layer's comes first"),
    "a bias for each step": (
        "08",
        "ring_gather_product",
        [("y.flatten(0, 1)", "y.flatten(0, 1) + p * bias")],
        "The bias is in every row more than once",
    ),
    "one place off the other way": (
        "08",
        "ring_gather_product",
        [("(r - step) % p", "(r - step + 1) % p")],
        "The rows of y are one place off",
    ),
}
TOLD |= {miss: ("05", name, changes, words) for miss, (name, words, *changes) in OF_COLUMNS_AND_ROWS.items()}
LIKE_IT_ON_TWO_RANKS = {
    "places from the end": ("08", "ring_gather_product", [("[(r - step) % p]", "[p - 1 - (r - step) % p]")]),
    "divided by the pieces": ("08", "pieced_product_scatter", [("torch.cat(mine)", "torch.cat(mine) / num_pieces")]),
    "halved": ("08", "ordered_backward", [("return dx, dweight", "return dx / 2, dweight")]),
}


def said(ranks, lesson, name, changes):
    """What a check says of a solution with some lines replaced."""
    LESSONS[lesson].set_up(ranks)
    with ranks.patient(3.0):
        ranks.run_cell(LESSONS[lesson].changed(name, *changes))
        return failure(ranks, name)


@pytest.mark.parametrize("mistake", TOLD)
def test_a_mistake_is_told_in_the_words_of_the_one_that_it_is_close_to(shared_ranks, mistake):
    lesson, name, changes, sentence = TOLD[mistake]
    assert sentence in said(shared_ranks, lesson, name, changes).split(" why ")[1].split(" hint ")[0]


@pytest.mark.parametrize("mistake", LIKE_IT_ON_TWO_RANKS)
def test_what_looks_like_a_known_mistake_on_two_ranks_alone_is_not_called_by_its_name(shared_ranks, mistake):
    assert " why " not in said(shared_ranks, *LIKE_IT_ON_TWO_RANKS[mistake])
