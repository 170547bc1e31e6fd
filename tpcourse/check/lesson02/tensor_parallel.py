"""Exercise `tensor_parallel(model, flops_per_s, bytes_per_s)`: r at 2, 4 and 8 ranks, and where it stops paying."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tpcourse.check.calculation import Calculation, Mistake, Trial, near, shown
from tpcourse.costs.models import MODELS, Model

Answer = tuple[dict[int, float], int]
RANKS = (2, 4, 8)
PEAK, NVLINK = 989e12, 450e9


def cases(generator: np.random.Generator) -> list[tuple[Model, float, float]]:
    """A real model over NVLink, and models of no one's over links that stop paying at another size each."""
    real = (MODELS["Llama 3 8B"], PEAK, NVLINK)
    return [real, *(_drawn(generator, ratio_at_8) for ratio_at_8 in (0.6, 1.5, 3.0, 20.0))]


def _drawn(generator: np.random.Generator, ratio_at_8: float) -> tuple[Model, float, float]:
    heads, kv_heads = (int(generator.integers(*span)) for span in ((20, 60), (2, 9)))
    width, hidden = (128 * int(generator.integers(*span)) for span in ((30, 60), (70, 160)))
    model = Model("a model", width, hidden, heads, kv_heads, 96, 10)
    flops = float(generator.uniform(100e12, 900e12))
    at_one_byte = right_answer(model, flops, 1.0)[0][8]
    return model, flops, at_one_byte / ratio_at_8


def by_parts(
    model: Model,
    flops_per_s: float,
    bytes_per_s: float,
    *,
    share: Callable[[int], float] = lambda p: (p - 1) / p,
    cut: Callable[[int], float] = lambda p: 1 / p,
    itemsize: int = 2,
    mlp: int = 3,
    grouped: bool = True,
) -> Answer:
    """The answer for one token, with what a wrong answer might do otherwise."""
    kv_heads = model.kv_heads if grouped else model.H
    width = (2 * model.H + 2 * kv_heads) * model.K + mlp * model.F
    ratios = {}
    for p in RANKS:
        communication_s = 4 * share(p) * itemsize * model.D / bytes_per_s
        ratios[p] = communication_s / (2 * model.D * width * cut(p) / flops_per_s)
    return ratios, max([1, *(p for p in RANKS if ratios[p] <= 1)])


def right_answer(model: Model, flops_per_s: float, bytes_per_s: float) -> Answer:
    """Four collectives of [tokens, D] in two bytes against four products cut in p."""
    return by_parts(model, flops_per_s, bytes_per_s)


def fault(result: object, *arguments: object) -> str:
    """Right to six digits, or the first ratio that is not, or the number of ranks."""
    ratios, last = right_answer(*arguments)  # type: ignore[arg-type]
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[0], dict):
        return f"gives {shown(result)}; a pair was expected: a dict 2, 4, 8 -> r, and a number of ranks"
    for p in RANKS:
        if not near(result[0].get(p), ratios[p]):
            return f"gives r = {shown(result[0].get(p))} at {p} ranks; it is {ratios[p]:.4g}"
    return "" if near(result[1], last) else f"says that it pays up to {shown(result[1])} ranks; it pays up to {last}"


def _first_above(trial: Trial) -> bool:
    result, (ratios, last) = trial.result, right_answer(*trial.arguments)
    pair = isinstance(result, tuple | list) and len(result) == 2
    return pair and near(result[0], ratios) and not near(result[1], last)


def _twice(model: Model, flops_per_s: float, bytes_per_s: float) -> Answer:
    return by_parts(model, flops_per_s, bytes_per_s, itemsize=4)


def _inverse(model: Model, flops_per_s: float, bytes_per_s: float) -> Answer:
    ratios, last = right_answer(model, flops_per_s, bytes_per_s)
    return {p: 1 / r for p, r in ratios.items()}, last


def _same(a: object, b: Answer) -> bool:
    """Equal ratios; the number of ranks follows from them."""
    return isinstance(a, tuple | list) and len(a) == 2 and near(a[0], b[0])


EXERCISE = Calculation(
    name="tensor_parallel",
    values="r is right at 2, 4 and 8 ranks, and so is the largest group that multiplies longer than it talks",
    arguments=("model", "flops_per_s", "bytes_per_s"),
    cases=cases,
    fault=fault,
    own="tpcourse.costs.products",
    same=_same,
    mistakes=(
        Mistake(
            "The ratios are right. The number of ranks is not the largest of 2, 4 and 8 whose r is at most 1.",
            "Take the largest p with r <= 1, and 1 if there is none: then splitting never pays.",
            shows=_first_above,
        ),
        Mistake(
            "The ratios are upside down: r is all communication over all products, and above 1 the link is too slow.",
            "Divide the seconds of the collectives by the seconds of the products.",
            gives=_inverse,
        ),
        Mistake(
            "Each rank multiplies the whole product; but the ranks share it, and each has a p-th part.",
            "Divide the FLOPs of the layer by p before you divide by flops_per_s.",
            gives=lambda *arguments: by_parts(*arguments, cut=lambda p: 1.0),
        ),
        Mistake(
            "A collective sends the whole array; but a rank keeps its own piece, so (p-1)/p of it crosses the link.",
            "Multiply the bytes by (p-1)/p.",
            gives=lambda *arguments: by_parts(*arguments, share=lambda p: 1.0),
        ),
        Mistake(
            "Every r is twice too large: bf16 has 2 bytes, a product 2mkn FLOPs, and a gather sends half of what an "
            "all-reduce sends.",
            "Four collectives of tokens x D x 2 bytes; products of 2 x tokens x D x width FLOPs.",
            gives=_twice,
        ),
        Mistake(
            "The gate is missing: the MLP has three products, gate and up by columns and down by rows.",
            "The widths of the MLP are 2F and F.",
            gives=lambda *arguments: by_parts(*arguments, mlp=2),
        ),
        Mistake(
            "Keys and values are counted with as many heads as queries; there are only kv_heads of each.",
            "Queries, keys and values together are (H + 2 kv_heads) K wide; the output takes H K.",
            gives=lambda *arguments: by_parts(*arguments, grouped=False),
        ),
    ),
)
