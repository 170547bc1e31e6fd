"""Mistakes close to those of `wrong_answers`, made from solutions of lessons 06 to 08: what each is told, if at all."""

from __future__ import annotations

import pytest
from exercise_help import Answers, failure

LESSONS = {name[:2]: Answers(name) for name in ("06_sequence_parallel", "07_zero", "08_overlap")}
FIRST_ONLY = "(dist.get_rank(group) == 0)"
LAST_ONLY = "(dist.get_rank(group) == dist.get_world_size(group) - 1)"
ADAMW = "torch.optim.AdamW([piece], **options)"
RETURNS = "    if not x.shape[1]:\n        return torch.zeros(())\n"
GATHER = "    h = conjugates.gather_scatter_sum(mlp.norm"
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
