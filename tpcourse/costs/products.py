"""A product beside the collective that it needs: which of the two takes longer."""

from __future__ import annotations

from typing import NamedTuple

from tpcourse.costs.asked import require_not_negative, require_positive, require_ranks
from tpcourse.costs.formulas import seconds
from tpcourse.costs.links import Line
from tpcourse.costs.models import Model, find_model

BF16 = 2  # bytes an element


class Times(NamedTuple):
    """Seconds in products and seconds in collectives; `ratio` is r = communication / product."""

    product_s: float
    communication_s: float

    @property
    def ratio(self) -> float:
        return self.communication_s / self.product_s


def product_flops(m: int, k: int, n: int) -> float:
    """FLOPs of [m, k] @ [k, n]: a multiplication and an addition for each of the m k n terms, 2mkn."""
    for name, value in (("m", m), ("k", k), ("n", n)):
        require_positive(value, name, "4096")
    return 2.0 * m * k * n


def overlap_ratio(p: int, local: int, flops_per_s: float, bytes_per_s: float, itemsize: int = BF16) -> float:
    """r = T_comm / T_product of an all-gather and the product behind it: F (p-1) / (p local B) in bf16.

    The gather carries (p-1)/p M K itemsize bytes, the product is 2 M K local FLOPs: M and K cancel. `local` is the
    width that a rank keeps: columns N/p after an all-gather; input rows K/p before a reduce-scatter, where N cancels.
    With local = N/p the p cancel too: r = F (p-1) / (N B). alpha is left out.
    Raises: ValueError for p < 1 and for anything that is not above 0.
    """
    p, width = require_ranks(p), require_positive(local, "local", "N // p columns")
    flops = require_positive(flops_per_s, "flops_per_s", "989e12, an H100 on paper")
    speed = require_positive(bytes_per_s, "bytes_per_s", "450e9, NVLink 4 on paper")
    return flops * (p - 1) / (p * width * speed) * require_positive(itemsize, "itemsize", "2") / 2


def best_speedup(ratio: float) -> float:
    """How much faster one after the other becomes if the two overlap perfectly: (1 + r) / max(1, r), at most 2.

    Raises: ValueError for a negative ratio.
    """
    ratio = require_not_negative(ratio, "ratio", "0.5")
    return (1 + ratio) / max(1.0, ratio)


def layer_times(model: str | Model, tokens: int, p: int, flops_per_s: float, link: str | Line) -> Times:
    """Forward of one layer on p ranks: four products, each with an all-gather before or a reduce-scatter after it.

    Traffic: 4 collectives of [tokens, D] in bf16, as rings: alpha counts. The same bytes as two all-reduces.
    Trap: attention's own products (queries by keys, weights by values) are left out; they communicate nothing, and
    count for little until sequences are longer than the model is wide.
    Raises: ValueError for an unknown model or link, p < 1, and for numbers that are not above 0.
    """
    found, p = find_model(model), require_ranks(p)
    tokens_ = require_positive(tokens, "tokens", "8192")
    flops = require_positive(flops_per_s, "flops_per_s", "989e12, an H100 on paper")
    num_bytes = BF16 * tokens_ * found.D
    collectives = 4 * seconds("all_gather", num_bytes, p, link)
    return Times(2 * tokens_ * found.D * (sum(found.columns) + sum(found.rows)) / p / flops, collectives)


def gradient_ratio(p: int, tokens: int, flops_per_s: float, bytes_per_s: float, itemsize: int = BF16) -> float:
    """r of data parallelism, its all-reduce over a step of M tokens a rank: 2 F (p-1) / (3 p M B) in bf16.

    The ring carries 2(p-1)/p P itemsize bytes once a step, the step is 6 P M FLOPs: the parameters P cancel, the
    tokens M do not. alpha is left out. Raises: ValueError as `overlap_ratio`.
    """
    p, tokens_ = require_ranks(p), require_positive(tokens, "tokens", "16384")
    flops = require_positive(flops_per_s, "flops_per_s", "989e12, an H100 on paper")
    speed = require_positive(bytes_per_s, "bytes_per_s", "1.25e9, 10 Gb/s on paper")
    num_bytes = 2 * (p - 1) / p * require_positive(itemsize, "itemsize", "2")
    return num_bytes / speed / (6 * tokens_ / flops)


def layer_ratio(model: str | Model, p: int, flops_per_s: float, bytes_per_s: float) -> float:
    """r of one layer's forward, alpha left out: 4 F (p-1) / (B (N1 + N2 + K1 + K2)); tokens and D cancel.

    N1 and N2 are the widths split by columns, K1 and K2 those split by rows. Backward has twice the FLOPs and the
    same four collectives if gathered inputs were kept, so half the r. Raises: ValueError as `overlap_ratio`.
    """
    found = find_model(model)
    width = sum(found.columns) + sum(found.rows)
    p = require_ranks(p)
    return 4 * overlap_ratio(p, width, flops_per_s, bytes_per_s) * p


def largest_tp(model: str | Model, flops_per_s: float, bytes_per_s: float, sizes: tuple[int, ...] = (2, 4, 8)) -> int:
    """The largest p of `sizes` at which a layer multiplies at least as long as it communicates (r <= 1); 1 if none."""
    return max([1, *(p for p in sizes if layer_ratio(model, p, flops_per_s, bytes_per_s) <= 1)])
